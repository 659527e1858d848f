"""Pending operands pass an operator only if the result equals that of reduced operands.

All element types are tried.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Sequence

import ml_dtypes
import numpy as np
import pytest
from operator_types import ROWS, TYPES, Row

import spmdsim.ops as ops
from spmdsim import LockStep, Mesh, Tensor
from spmdsim.errors import RuleError, WorldError

MESH = Mesh((2, 2), ("a", "b"))
WORLD = LockStep(4)
#: One type of each kind and width that behaves differently; types of 16 bits have separate tests, because they round.
KINDS = [np.dtype(name) for name in ("?", "u1", "i8", "f4", "c8")]


def terms_of(dtype: np.dtype, shape: tuple[int, ...], seed: int) -> list[np.ndarray]:
    """Return two arrays of the type `dtype` and of `shape`, random by `seed`.

    Integers wrap around in their sum, and fractions add up to integers. The first elements of fractions are
    large and cancel.
    """
    rng = np.random.default_rng([seed, *shape])
    if dtype.kind == "b":
        return [rng.integers(0, 2, shape).astype(bool) for _ in range(2)]
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return [rng.integers(limits.min, limits.max, shape, dtype, endpoint=True) for _ in range(2)]
    terms = [rng.integers(1, 8, shape) / 4 for _ in range(2)]
    terms[0].flat[0], terms[1].flat[0] = 1e5, 1.5 - 1e5
    return [(x + (0.5j * x if dtype.kind == "c" else 0)).astype(dtype) for x in terms]


def pending(arrays: Sequence[np.ndarray], op: str) -> Tensor:
    """Return the arrays as the terms of a pending reduction `op` over axis a, split over axis b."""
    layout = MESH("b", None, partial=(("a", op),))
    blocks = [np.array_split(array, 2) for array in arrays]
    return Tensor.from_local(
        [blocks[rank // 2][rank % 2] for rank in range(4)], layout, WORLD, shape=arrays[0].shape
    )


def reductions(dtype: np.dtype) -> Iterator[str]:
    if dtype.kind == "b":
        yield from ("any", "all", "max", "min")
    else:
        yield from (
            "sum",
            "prod",
            *(() if dtype.kind == "c" else ("max", "min")),
            *(("avg",) if dtype.kind in "fc" else ()),
        )


def outcome(row: Row, operands: Sequence[Tensor]) -> np.ndarray | None:
    try:
        return row.call(*operands).full()
    except (RuleError, WorldError, ValueError):  # NumPy refuses negative powers of integers.
        return None


def compare(name: str, operands: Sequence[Tensor]) -> None:
    """Compare the operator `name` on pending operands with its result on reduced operands."""
    row = ROWS[name]
    result = outcome(row, operands)
    want = outcome(row, [x.to(x.layout.reduced) for x in operands])
    message = f"{name} of {operands}"
    assert (result is None) == (want is None), message
    if want is None:
        return
    if want.dtype.kind in "biu":
        np.testing.assert_array_equal(result, want, message)
    else:
        wide = "c16" if want.dtype.kind == "c" else "f8"
        steps = [x.dtype if x.dtype.kind in "fcV" else np.exp(np.ones(1, x.dtype)).dtype for x in operands]
        eps = max(float(ml_dtypes.finfo(dtype).eps) for dtype in (*steps, want.dtype))
        # Large terms cancel and leave their rounding error.
        remainder = 4e5 * min(eps, 1.2e-7)
        np.testing.assert_allclose(
            result.astype(wide), want.astype(wide), 64 * eps + remainder, remainder, err_msg=message
        )


SINGLE = [name for name, row in ROWS.items() if row.operands == 1 and row.shape == (2, 3)]
PAIRS = [name for name, row in ROWS.items() if row.operands == 2]


@pytest.mark.parametrize("name", SINGLE)
def test_operators_of_one_pending_operand_equal_the_reduced_operand(name):
    """Sums of every type are tried, and every second case of the other reductions."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        combinations = [(dtype, op) for dtype in KINDS for op in reductions(dtype)]
        for k, (dtype, op) in enumerate(combinations, SINGLE.index(name)):
            if op in ("sum", "any") or k % 2:
                compare(name, [pending(terms_of(dtype, (2, 3), 0), op)])


@pytest.mark.parametrize("name", PAIRS)
def test_operators_of_two_pending_operands_equal_reduced_operands(name):
    """Either operand is pending, or both over one axis; operators try a quarter of all pairs of types."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for a, b in [*itertools.product(KINDS, KINDS)][PAIRS.index(name) % 4 :: 4]:
            op = ["any" if dtype.kind == "b" else "sum" for dtype in (a, b)]
            x, y = pending(terms_of(a, (2, 3), 0), op[0]), pending(terms_of(b, (2, 3), 1), op[1])
            for operands in ([x, y], [x.to(x.layout.reduced), y], [x, y.to(y.layout.reduced)]):
                compare(name, operands)


def test_additive_conversions_equal_their_definition():
    """Conversions pass if cast(a + b) equals cast(a) + cast(b) for large, small and fractional numbers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for src, dst in itertools.product(TYPES, TYPES):
            op = "any" if src.kind == "b" else "sum"
            a, b = terms_of(src, (8, 8), 2)
            passes = bool(pending((a, b), op).astype(dst).layout.partial)
            if "b" in src.kind + dst.kind:
                assert passes == (src == dst)
                continue
            cast_sum, sum_of_casts = (a + b).astype(dst), a.astype(dst) + b.astype(dst)
            if passes:
                is_close = np.abs(cast_sum.astype("c16") - sum_of_casts.astype("c16")) <= 2 * _gap(
                    src
                ) * np.abs(a.astype("c16"))
                assert (is_close | ~np.isfinite(cast_sum.astype("c16"))).all(), (src, dst)
            elif src.kind in "iu" and dst.kind in "iu":
                assert (cast_sum != sum_of_casts).any(), (src, dst)


def _gap(dtype: np.dtype) -> float:
    return 0 if dtype.kind in "iu" else float(ml_dtypes.finfo(dtype).eps)


@pytest.mark.ranks(2)
def test_sums_are_reduced_before_their_conversion(world):
    """Terms of single ranks would convert to other numbers than their sum."""
    mesh = Mesh((2,), ("a",))
    x = Tensor.from_global(np.array([0.6, 0.6], "f4"), mesh("a"), world)
    assert x.sum().astype(int).item() == 1
    row = Tensor.from_global(np.array([[0.6, 0.6]], "f4"), mesh(None, "a"), world)
    ones = Tensor.from_global(np.ones((2, 1), "f4"), mesh("a", None), world)
    assert (row @ ones).astype("int32").full().tolist() == [[1]]
    assert Tensor.from_global(np.array([1e5, -1e5], "f4"), mesh("a"), world).sum().astype("f2").item() == 0
    small = Tensor.from_global(np.array([[100, 100]], "i1"), mesh(None, "a"), world)
    wrapped = small @ Tensor.from_global(np.ones((2, 1), "i1"), mesh("a", None), world)
    assert wrapped.astype("i2").full().tolist() == [[-56]]
    assert (wrapped * 0.5).full().tolist() == [[-28]]
    assert (wrapped + wrapped.astype("i8")).full().tolist() == [[-112]]


@pytest.mark.ranks(2)
def test_widened_sums_stay_pending(world):
    mesh = Mesh((2,), ("a",))
    x = Tensor.from_global(np.array([0.5, 0.25], "f4"), mesh("a"), world).sum()
    assert x.astype("f8").layout.partial and not x.astype("i8").layout.partial
    integer_sum = Tensor.from_global(np.array([300, 300], "i8"), mesh("a"), world).sum()
    assert integer_sum.astype("i1").layout.partial and integer_sum.astype("i1").item() == 88
    assert not integer_sum.astype("f8").layout.partial


@pytest.mark.ranks(1, 2, 3)
def test_lookups_of_truth_values_equal_numpy(world):
    """Ranks without an entry contribute False, so the pending reduction is ``any``."""
    mesh = Mesh((world.size,), ("a",))
    truth = np.array([True, False, False, True])
    table = np.array([[True, False], [False, False], [True, True], [False, True]])
    x = Tensor.from_global(truth, mesh("a"), world)
    rows = Tensor.from_global(table, mesh("a", None), world)
    ids = Tensor.from_global(np.array([3, 1, 0]), mesh(None), world)
    assert x[[3, 1, 0]].full().tolist() == [True, False, True]
    assert ops.window(x, (1,), (4,)).full().tolist() == [False, False, True]
    np.testing.assert_array_equal(ops.embedding(ids, rows).full(), table[[3, 1, 0]])
    split = Tensor.from_global(table.T[:, :3], mesh(None, "a"), world)
    last = Tensor.from_global(np.array([2, 0]), mesh(None), world)
    assert ops.pick(split, last).full().tolist() == [True, False]
    np.testing.assert_array_equal((ops.transpose(rows) @ rows).full(), table.T @ table)
    assert (x @ x).item() is True and ops.einsum("i,i->", x, ops.logical_not(x)).item() is False
    assert (ops.logical_not(x[[3, 1, 0]])).full().tolist() == [False, True, False]
