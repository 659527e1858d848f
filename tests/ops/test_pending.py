"""What is pending passes an operator only where the result is that of the reduced operand, for every type."""

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
from spmdsim.layout.element_type import is_additive

MESH = Mesh((2, 2), ("a", "b"))
WORLD = LockStep(4)
#: One of each kind and width that behaves differently; those of 16 bits are rounded on the way and have their own tests.
KINDS = [np.dtype(name) for name in ("?", "u1", "i8", "f4", "c8")]


def parts(dtype: np.dtype, shape: tuple[int, ...], seed: int) -> list[np.ndarray]:
    """Two arrays: whole numbers that wrap around when they are added, fractions that are whole only together.

    The first elements of fractions are large and cancel.
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
    """The arrays as what is to be reduced over a, split over b."""
    layout = MESH("b", None, partial=(("a", op),))
    pieces = [np.array_split(array, 2) for array in arrays]
    return Tensor.from_local(
        [pieces[rank // 2][rank % 2] for rank in range(4)], layout, WORLD, shape=arrays[0].shape
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
    except (RuleError, WorldError, ValueError):  # numpy refuses negative powers of integers
        return None


def compare(name: str, operands: Sequence[Tensor]) -> None:
    """The operator on what is pending, and on the same reduced first."""
    row = ROWS[name]
    result = outcome(row, operands)
    want = outcome(row, [x.to(x.layout.reduced) for x in operands])
    where = f"{name} of {operands}"
    assert (result is None) == (want is None), where
    if want is None:
        return
    if want.dtype.kind in "biu":
        np.testing.assert_array_equal(result, want, where)
    else:
        wide = "c16" if want.dtype.kind == "c" else "f8"
        steps = [x.dtype if x.dtype.kind in "fcV" else np.exp(np.ones(1, x.dtype)).dtype for x in operands]
        eps = max(float(ml_dtypes.finfo(dtype).eps) for dtype in (*steps, want.dtype))
        # Where the large parts cancel, their rounding is left.
        left = 4e5 * min(eps, 1.2e-7)
        np.testing.assert_allclose(
            result.astype(wide), want.astype(wide), 64 * eps + left, left, err_msg=where
        )


SINGLE = [name for name, row in ROWS.items() if row.operands == 1 and row.shape == (2, 3)]
PAIRS = [name for name, row in ROWS.items() if row.operands == 2]


@pytest.mark.parametrize("name", SINGLE)
def test_one_operand(name):
    """Sums of every type; of the other reductions each operator has every second, the next operator the others."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        combinations = [(dtype, op) for dtype in KINDS for op in reductions(dtype)]
        for k, (dtype, op) in enumerate(combinations, SINGLE.index(name)):
            if op in ("sum", "any") or k % 2:
                compare(name, [pending(parts(dtype, (2, 3), 0), op)])


@pytest.mark.parametrize("name", PAIRS)
def test_two_operands(name):
    """Either is pending, or both over the same axis; of the pairs of types each operator has every fourth."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for a, b in [*itertools.product(KINDS, KINDS)][PAIRS.index(name) % 4 :: 4]:
            op = ["any" if dtype.kind == "b" else "sum" for dtype in (a, b)]
            x, y = pending(parts(a, (2, 3), 0), op[0]), pending(parts(b, (2, 3), 1), op[1])
            for operands in ([x, y], [x.to(x.layout.reduced), y], [x, y.to(y.layout.reduced)]):
                compare(name, operands)


def test_conversions_that_pass():
    """By the definition: cast(a + b) is cast(a) + cast(b), for numbers that overflow, cancel and have fractions."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for src, dst in itertools.product(TYPES, TYPES):
            if "b" in src.kind + dst.kind:
                assert is_additive(src, dst) == (src == dst)
                continue
            a, b = parts(src, (8, 8), 2)
            whole, added = (a + b).astype(dst), a.astype(dst) + b.astype(dst)
            if is_additive(src, dst):
                close = np.abs(whole.astype("c16") - added.astype("c16")) <= 2 * _gap(src) * np.abs(
                    a.astype("c16")
                )
                assert (close | ~np.isfinite(whole.astype("c16"))).all(), (src, dst)
            elif src.kind in "iu" and dst.kind in "iu":
                assert (whole != added).any(), (src, dst)


def _gap(dtype: np.dtype) -> float:
    return 0 if dtype.kind in "iu" else float(ml_dtypes.finfo(dtype).eps)


@pytest.mark.ranks(2)
def test_converted_sums(world):
    """Each rank's part says something else than the whole."""
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
    whole = Tensor.from_global(np.array([300, 300], "i8"), mesh("a"), world).sum()
    assert whole.astype("i1").layout.partial and whole.astype("i1").item() == 88
    assert not whole.astype("f8").layout.partial


@pytest.mark.ranks(1, 2, 3)
def test_lookups_of_truth_values(world):
    """Where the table is split a rank has nothing to say of others' entries: what is left is ``any``, not a sum."""
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
