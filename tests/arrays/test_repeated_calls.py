"""Check that repeated calls give equal results, and that traces and gradients see each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from spmdsim import LockStep, Mesh, Tensor, ops, record
from spmdsim.cases.injection import Intercepted
from spmdsim.errors import SpmdError

MESH = Mesh((1,), ("x",))
VALUES = np.arange(24, dtype=np.float32).reshape(4, 6)
WAYS: dict[str, Callable[[Any], Any]] = {
    "T": lambda x: x.T,
    "reshape": lambda x: x.reshape(8, 3),
    "reshape of the rest": lambda x: x.reshape((2, -1)),
    "rows": lambda x: x[1:3],
    "columns": lambda x: x[:, 2:4],
    "every other": lambda x: x[::2],
    "turned": lambda x: x[::-1],
    "a row": lambda x: x[2],
    "the last row": lambda x: x[-1],
    "an element": lambda x: x[1, 2],
    "a column in front": lambda x: x[None, :, 0],
    "a new dim": lambda x: x[1:2, None],
    "nothing": lambda x: x[3:3],
}


def tensor(world: LockStep | None = None, **more: Any) -> Tensor:
    return Tensor.from_global(VALUES, MESH(None, None), world or LockStep(1), **more)


@pytest.mark.parametrize("name", WAYS)
def test_again(name: str) -> None:
    x, way = tensor(), WAYS[name]
    for _ in range(3):
        y = way(x)
        np.testing.assert_array_equal(y.full(), way(VALUES))
        assert y.shape == way(VALUES).shape and y.dtype == np.float32
    np.testing.assert_array_equal(way(x + 1).full(), way(VALUES + 1))
    assert way(tensor(x.world)).meta is y.meta


def test_vectors_keep_their_way() -> None:
    x = Tensor.from_global(VALUES[0], MESH("x"), LockStep(1))
    for _ in range(2):
        assert x[2].item() == 2 and x[1:3].shape == (2,)
        np.testing.assert_array_equal(x[:, None].full(), VALUES[0][:, None])


def test_who_records_or_wants_gradients_sees_all() -> None:
    x = tensor()
    for _ in range(2):
        _ = x.T, x[1:3]
    with record() as trace:
        _ = x.T, x[1:3]
    assert [event.name for event in trace.operators] == ["transpose", "slice"]
    leaf = tensor(x.world, requires_grad=True)
    leaf[1:3].sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.full().sum(axis=1).tolist() == [0, 6, 6, 0]


def test_another_world_with_the_same_memory_runs_its_own_steps() -> None:
    inner = LockStep(1)
    x, seen = tensor(inner), []
    for _ in range(2):
        _ = x[1:3]
    outer = Intercepted(inner, lambda when, step, shards: seen.append(when) or shards)
    y = Tensor(outer, x.meta, x.stored_shards)
    for _ in range(2):
        _ = y[1:3]
    assert seen == ["before", "after"] * 2


def test_what_only_equals_a_known_size_is_refused_still() -> None:
    x = tensor()
    for _ in range(2):
        _ = x.reshape(8, 3)
    with pytest.raises(SpmdError, match="are integers"):
        x.reshape(8.0, 3)  # type: ignore[arg-type]
    with pytest.raises(SpmdError, match="has 24 elements"):
        x.reshape(8, 4)
    with pytest.raises(SpmdError, match="out of range"):
        x[4]


def test_numbers_beside_tensors_keep_sign_and_type() -> None:
    x = tensor()
    for _ in range(2):
        assert np.signbit(ops.copysign(x, -0.0).full()).all()
        assert not np.signbit(ops.copysign(x, 0.0).full()).any()
        assert (x * 2).dtype == np.float32 and (x > 0).full().sum() == 23
        whole = Tensor.from_global(VALUES.astype(np.int32), MESH(None, None), x.world)
        assert (whole * 2).dtype == np.int32 and (whole * 2.0).dtype == np.float64
        assert (whole * True).dtype == np.int32
    y = ops.add(x, 1)
    y += 1  # the number is nobody's to change
    np.testing.assert_array_equal(ops.add(x, 1).full(), VALUES + 1)


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("dims", [None, 0, (0, 1), -1])
def test_reductions_again(dims: Any, keepdims: bool) -> None:
    x = tensor()
    for name in ("sum", "max", "min"):
        for _ in range(2):
            y, wanted = getattr(x, name)(dims, keepdims), getattr(VALUES, name)(dims, keepdims=keepdims)
            np.testing.assert_array_equal(y.full(), wanted)
            assert y.shape == wanted.shape and y.dtype == wanted.dtype
