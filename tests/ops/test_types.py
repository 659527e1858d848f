"""Public operators equal numpy in values and types, for every element type and every pair of types.

Operands are split so that one rank owns no elements and another one is outside of the mesh. The tensor has
the type of all its arrays in every world.
"""

from __future__ import annotations

import itertools
import operator
import warnings
from typing import Any

import numpy as np
import pytest
from operator_types import BF16, MESH, ROWS, SIZED_BY_VALUES, TYPES, Row, expected, rounding, values

import spmdsim.ops as ops
from spmdsim import LockStep, ShapeOnly, Tensor
from spmdsim.arrays import Op
from spmdsim.core import Rule
from spmdsim.errors import InputError, RuleError

WORLDS = LockStep(4), ShapeOnly(4)


def test_every_public_operator_has_a_row():
    assert {*ROWS, *SIZED_BY_VALUES} == set(ops.__all__)


def run(row: Row, arrays: list[np.ndarray], world: Any, split: int | None) -> Tensor:
    layout = MESH(*["a" if dim == split else None for dim in range(2)])
    return row.call(*[Tensor.from_global(x, layout, world) for x in arrays])


def check(name: str, row: Row, dtypes: tuple[np.dtype, ...], split: int | None) -> None:
    arrays = [values(dtype, row.shape, k) for k, dtype in enumerate(dtypes)]
    want = expected(row, name, arrays)
    if name == "padded_embedding":
        arrays[0][2::3] = 0
    message = f"{name} of {', '.join(d.name for d in dtypes)}, split {split}"
    if want is None or any(d.kind in row.refused for d in dtypes):
        for world in WORLDS:
            with pytest.raises(RuleError):
                raise AssertionError(f"{message} gives {run(row, arrays, world, split)}, numpy refuses")
        return
    result, shaped = (run(row, arrays, world, split) for world in WORLDS)
    assert result.dtype == want.dtype, f"{message}: {result.dtype}, numpy has {want.dtype}"
    assert {shard.dtype for shard in result.shards} == {result.dtype}, message
    assert (shaped.meta, shaped.shards[0].dtype) == (result.meta, result.dtype), message
    full = result.full()
    if want.dtype.kind in "biu":
        np.testing.assert_array_equal(full, want, message)
    else:
        wide = "c16" if want.dtype.kind == "c" else "f8"
        tolerance = rounding([*dtypes, want.dtype])
        np.testing.assert_allclose(
            full.astype(wide), want.astype(wide), tolerance, tolerance, err_msg=message
        )


@pytest.mark.parametrize(
    "number, name", [*enumerate(name for name, row in ROWS.items() if row.operands == 1)]
)
def test_operators_of_one_operand_equal_numpy(number, name):
    """Types are tried in one split each, float32 in all splits; the next operator shifts the splits."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for k, (dtype, split) in enumerate(itertools.product(TYPES, (None, 0, 1))):
            if dtype == "f4" or (k + k // 3 + number) % 3 == 0:
                check(name, ROWS[name], (dtype,), split)


@pytest.mark.parametrize(
    "number, name", [*enumerate(name for name, row in ROWS.items() if row.operands == 2)]
)
def test_operators_of_two_operands_equal_numpy(number, name):
    """Operators try a fifth of all pairs of types each."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for a, b in [*itertools.product(TYPES, TYPES)][number % 5 :: 5]:
            check(name, ROWS[name], (a, b), split=0)
        for k, dtype in enumerate(TYPES, number):
            check(name, ROWS[name], (dtype, np.dtype("f4")), 1 if k % 2 else None)


@pytest.mark.ranks(4)
def test_ranks_outside_of_a_mesh_know_the_types(world):
    """Ranks outside of the mesh do not run the local function, but know its type."""
    x = Tensor.from_global(np.array([[3 + 4j, 1j, 1], [0, 2, -5j]]), MESH("a", None), world)
    moduli = ops.absolute(x)
    assert {shard.dtype for shard in moduli.shards} == {moduli.dtype} == {np.dtype("f8")}
    assert moduli.full().tolist() == [[5, 1, 1], [0, 2, 5]]
    integers = Tensor.from_global(np.array([[1, 2, 3], [4, 5, 6]], "i1"), MESH("a", None), world)
    assert ops.rint(integers).full().dtype == np.rint(integers.full()).dtype


def test_local_functions_must_return_the_declared_type():
    x = Tensor.from_global(np.array([[1, 4, 9]]), MESH(None, None), WORLDS[0])
    rule = Rule.parse("... -> ...")
    with pytest.raises(RuleError, match="of root must return int64, got float64"):
        Op("root", rule, np.sqrt)(x)
    narrow = Op("root", rule, np.sqrt, dtype=lambda _: np.dtype("f4"))(x)
    assert narrow.dtype == "f4" and narrow.full().dtype == "f4" and narrow.full().tolist() == [[1, 2, 3]]


def test_numbers_and_lists_beside_tensors_are_promoted():
    x = Tensor.from_global(np.array([1, 2], BF16), MESH(None), WORLDS[0])
    assert [(x + value).dtype.name for value in (1, 2.5, 1j)] == ["bfloat16", "bfloat16", "complex64"]
    assert (x + np.array([1, 2], "i4")).dtype == BF16 and (np.array([1, 2], "f2") + x).dtype == "f4"
    scalars = np.float64(2.5), np.float32(2.5), np.complex128(1j), np.int64(3)
    assert [(x + value).dtype.name for value in scalars] == ["float64", "float32", "complex128", "bfloat16"]
    for kind in ("f4", "i4", "f2"):
        numbers = np.array([1, 2], kind)
        tensor = Tensor.from_global(numbers, MESH(None), WORLDS[0])
        for value in (2.5, np.float64(2.5), np.float32(2.5), 1j, np.complex128(1j)):
            assert (tensor + value).dtype == (numbers + value).dtype
    assert (2**x).full().tolist() == [2, 4]
    assert (x == [1, 3]).full().tolist() == [True, False] and (x != (1, 3)).full().tolist() == [False, True]
    assert (x == "one") is False and (x != None) is True  # noqa: E711
    for value, words in (("one", "str"), (np.array(["one"]), "ndarray"), (None, "NoneType"), ({}, "dict")):
        with pytest.raises(
            RuleError, match=f"an operand must be a tensor, .* not {words} with elements of type"
        ):
            ops.add(x, value)


@pytest.mark.parametrize("world", WORLDS, ids=["lock step", "shapes only"])
def test_numbers_out_of_range_are_refused_in_one_line(world):
    x = Tensor.from_global(np.arange(4, dtype="i1"), MESH("a"), world)
    for call in (lambda: x + 300, lambda: 300 - x, lambda: ops.maximum(x, 300)):
        with pytest.raises(
            InputError, match=r"^300 is out of range for int8 \(-128 to 127\); convert the tensor first"
        ):
            call()
    assert (x + 100).dtype == np.int8
    with pytest.raises(InputError, match=r"^an int of 19932 bits is out of range for int8"):
        x + 10**6000
    for dtype in ("f2", "f8", "c8"):
        with pytest.raises(
            InputError, match=r"^a number beside \w+ must have at most 1024 bits, got an int of 1329 bits"
        ):
            Tensor.from_global(np.arange(4, dtype=dtype), MESH("a"), world) * 10**400


@pytest.mark.parametrize("sign", [1, -1])
def test_integers_compare_with_ints_beyond_all_floats(sign):
    numbers, huge = np.arange(4), sign * 10**400
    x = Tensor.from_global(numbers, MESH("a"), WORLDS[0])
    for compare in (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne):
        assert compare(x, huge).full().tolist() == compare(numbers, huge).tolist()
        assert compare(huge, x).full().tolist() == compare(huge, numbers).tolist()


@pytest.mark.parametrize("world", WORLDS, ids=["lock step", "shapes only"])
def test_quotients_with_ints_beyond_all_floats_are_refused_in_one_line(world):
    x = Tensor.from_global(np.arange(4), MESH("a"), world)
    for call in (lambda: x / 10**400, lambda: -(10**400) / x):
        with pytest.raises(
            InputError, match=r"^a number beside int64 must have at most 1024 bits, got an int of 1329 bits$"
        ):
            call()


def test_integers_to_negative_powers_are_refused_in_one_line():
    x = Tensor.from_global(np.arange(1, 5, dtype="i4"), MESH("a"), WORLDS[0])
    with pytest.raises(
        InputError, match=r"^int32 to a negative power of int32 is no integer: convert it first"
    ):
        x**-1
    np.testing.assert_array_equal((x.astype(float) ** -1).full(), 1 / np.arange(1, 5.0))
    np.testing.assert_array_equal((x**2).full(), np.arange(1, 5) ** 2)
