"""Element types of tensors: numbers and truth values in this machine's byte order, whatever the source has."""

from __future__ import annotations

import numpy as np
import pytest

from spmdsim import Layout, LockStep, Mesh, Partial, ShapeOnly, Tensor
from spmdsim.errors import InputError, LayoutError

MESH = Mesh((2,), ("a",))


@pytest.mark.parametrize(
    ("source", "named"),
    [
        (np.array([None, 3]), "object"),
        (["a", "bc"], "<U2"),
        ([b"a", b"b"], "|S1"),
        (np.zeros(2, "M8[s]"), "datetime64[s]"),
        (np.zeros(2, [("x", "i4"), ("y", "f8")]), "x"),
    ],
)
def test_what_is_no_number_is_refused_in_one_line(source: object, named: str) -> None:
    for world in (LockStep(2), ShapeOnly(2)):
        with pytest.raises(InputError, match=r"numbers and truth values") as error:
            Tensor.from_global(source, MESH("a"), world)
        assert named in str(error.value) and "\n" not in str(error.value)
    with pytest.raises(LayoutError, match=r"rank 1 .*numbers and truth values"):
        Tensor.from_local([np.zeros(1), np.asarray(source)[1:]], MESH("a"), LockStep(2))


def test_a_function_of_objects_is_refused() -> None:
    with pytest.raises(InputError, match="numbers and truth values"):
        Tensor.from_global(lambda index: None, MESH("a"), LockStep(2), shape=(4,), dtype=object)


def test_rows_of_different_lengths_are_refused_in_one_line() -> None:
    for make in (
        lambda: Tensor.from_global([[1, 2], [3]], MESH("a", None), LockStep(2)),
        lambda: Tensor.from_local([[[1, 2]], [[3], [4, 5]]], MESH("a", None), LockStep(2)),
    ):
        with pytest.raises(InputError, match="same length") as error:
            make()
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("code", [">f4", ">i8", ">c8", ">f2", ">u2"])
def test_bytes_in_another_order_are_turned_when_a_tensor_is_made(code: str) -> None:
    values = np.arange(6).astype(code)
    made = Tensor.from_global(values, MESH("a"), LockStep(2))
    assert made.dtype.isnative and all(shard.dtype.isnative for shard in made.shards)
    np.testing.assert_array_equal(made.full(), values)
    asked = Tensor.from_global(np.arange(6), MESH("a"), LockStep(2), dtype=code)
    assert asked.dtype == made.dtype and asked.shards[0].dtype.isnative
    function = Tensor.from_global(lambda i: values[i], MESH("a"), LockStep(2), shape=(6,), dtype=code)
    assert function.dtype == made.dtype and function.shards[1].dtype.isnative
    assert made.astype(code).dtype == made.dtype


def test_ranks_with_bytes_in_different_orders_understand_each_other() -> None:
    pieces = [np.array([1, 2], ">i4"), np.array([3, 4], "<i4")]
    joined = Tensor.from_local(pieces, MESH("a"), LockStep(2))
    assert all(shard.dtype.isnative for shard in joined.shards)
    np.testing.assert_array_equal(joined.full(), [1, 2, 3, 4])
    pending = Layout.from_placements(MESH, [Partial("sum")], 1)
    np.testing.assert_array_equal(Tensor.from_local(pieces, pending, LockStep(2)).full(), [4, 6])
