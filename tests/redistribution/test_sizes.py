"""Plans and reshapes refuse invalid sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spmdsim import LockStep, Mesh, Tensor, plan
from spmdsim.core.step import Step
from spmdsim.errors import PlanError, RuleError, UsageTypeError
from spmdsim.redistribution.exchange.flat import flat_receives
from spmdsim.redistribution.step_counts import reduced_block

MESH = Mesh((2,), ("a",))


@pytest.mark.parametrize("shape", [(4, 2.5), ("4", 2), "ab", (4, None)])
def test_the_sizes_of_a_plan_are_integers(shape: Any) -> None:
    with pytest.raises(UsageTypeError, match=r"sizes of a shape are integers, but got") as error:
        plan(MESH("a", None), MESH(None, "a"), shape, "float32")
    assert "\n" not in str(error.value)


def test_numpy_integers_are_sizes() -> None:
    assert plan(MESH("a", None), MESH(None, "a"), (np.int64(4), np.int8(2)), "f4").shape == (4, 2)


def test_negative_sizes_of_a_plan_are_refused() -> None:
    with pytest.raises(
        PlanError, match=r"^plan: sizes of a shape must be 0 or more, got \(4, -3\) for \[a, -\]"
    ):
        plan(MESH("a", None), MESH(None, "a"), (4, -3), "float32")


def test_sizes_beyond_64_bits_are_refused() -> None:
    most = 2**61 // MESH.size
    pending = MESH(None, partial="a")
    assert plan(pending, MESH(None), (most,), "c16").total_nbytes == 2 * (MESH.size - 1) * most * 16
    for shape in ((most + 1,), (2**40, 2**40), (10**30,)):
        layout = MESH("a", *[None] * (len(shape) - 1))
        with pytest.raises(PlanError, match=r"too many to count exactly: at most 2,305,843,009,213,693,952$"):
            plan(layout, MESH(*[None] * len(shape)), shape, "float32")


@pytest.mark.parametrize("shape", ["a", (7.9, 5), (None, 5), 5.5])
def test_the_sizes_of_a_reshape_are_integers(shape: Any) -> None:
    x = Tensor.from_global(np.ones((7, 5)), MESH("a", None), LockStep(2))
    with pytest.raises(UsageTypeError, match=r"sizes of a shape are integers, but got"):
        x.reshape(shape)


def test_a_reshape_may_have_one_open_size() -> None:
    x = Tensor.from_global(np.ones((7, 5)), MESH("a", None), LockStep(2))
    for shape in ((-5, -7), (-35, -1), (-2, 5)):
        with pytest.raises(RuleError, match=r"no negative sizes but one -1, and got"):
            x.reshape(shape)
    assert x.reshape((np.int64(5), -1)).shape == (5, 7)


def test_each_rank_of_an_all_reduce_reduces_its_block() -> None:
    mesh = Mesh((3,), ("a",))
    step = Step("all_reduce", ("a",), mesh(None, partial="a"), mesh(None), (7,), "sum")
    assert [reduced_block(step, rank) for rank in range(3)] == [3, 2, 2]


@pytest.mark.parametrize("shapes", [((0, 4), (2, 0)), ((0,), (0, 3)), ((4, 0), (0,))], ids=str)
def test_reshapes_of_empty_tensors_receive_nothing(shapes):
    src, dst = (MESH("a", *[None] * (len(shape) - 1)) for shape in shapes)
    assert [flat_receives(src, dst, *shapes, rank) for rank in (0, 1)] == [(), ()]
