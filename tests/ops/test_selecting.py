"""Masks, indices, sets, order statistics and counts of split tensors equal numpy, in balanced blocks."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from spmdsim import Mesh, Tensor, ops, record
from spmdsim.core import Layout
from spmdsim.errors import InputError, RuleError, WorldError
from spmdsim.worlds import ShapeOnly
from tests.ops.test_scans import layouts, tensor_of

pytestmark = pytest.mark.filterwarnings("ignore::spmdsim.redistribution.guard.GatheringWarning")
S = np.s_
SHAPES = [(13, 3), (3, 2), (0, 2), (40,), (2, 3, 4)]


def mixed(shape: tuple[int, ...], dtype: str = "float64") -> np.ndarray:
    rng = np.random.default_rng(list(shape))
    x = rng.integers(-3, 4, shape).astype(dtype)
    if x.dtype.kind in "fc":
        x[rng.random(shape) < 0.15] = np.nan
    return x


def replicated(array: np.ndarray, layout: Layout, world) -> Tensor:
    return tensor_of(array, Layout.replicated(layout.mesh, array.ndim), world)


def check_balanced(y: Tensor, expected: np.ndarray, world) -> None:
    """Check the elements of ``y`` against `expected`, and each rank's block in its world by the layout."""
    np.testing.assert_array_equal(y.full(), expected)
    for rank, shard in zip(world.ranks, y.shards):
        np.testing.assert_array_equal(shard, expected[y.layout.slices(expected.shape, rank)])


@pytest.mark.ranks(1, 3, 4)
def test_masks_and_gradients_equal_numpy(world):
    rng = np.random.default_rng(0)
    for shape in SHAPES:
        x = mixed(shape)
        for layout in layouts(world.size, len(shape)):
            t = Tensor.from_global(x, layout.reduced, world, requires_grad=True)
            for mask in (
                x > 0,
                x[..., 0] > 0 if len(shape) > 1 and shape[0] != 2 else x > 9,
                np.ones(shape, bool),
            ):
                if mask.shape != shape[: mask.ndim]:
                    continue
                m = tensor_of(mask, layout.mesh(*layout.dims[: mask.ndim]), world)
                y = t[m]
                check_balanced(y, x[mask], world)
                assert y.layout.dims[0] == tuple(a for e in layout.dims[: mask.ndim] for a in e)
                dy = rng.normal(size=(1000, 4))[: y.shape[0], : (y.shape[1] if y.ndim > 1 else 1)].reshape(
                    y.shape
                )
                t.grad = None
                y.backward(replicated(dy, layout, world))
                expected = np.zeros(shape)
                expected[mask] = dy
                assert t.grad.layout == t.layout
                np.testing.assert_array_equal(t.grad.full(), expected)


@pytest.mark.ranks(3)
def test_a_mask_without_dims_selects_all_or_nothing(world):
    for x, mask in itertools.product((np.arange(5.0), np.float64(3)), (True, False)):
        mesh = Mesh((world.size,), ("x",))
        taken = tensor_of(x, mesh(*["x"] * np.ndim(x)), world)[tensor_of(np.asarray(mask), mesh(), world)]
        np.testing.assert_array_equal(taken.full(), x[np.asarray(mask)], strict=True)
    with pytest.raises(IndexError, match=r"^a mask of shape \(7,\) does not fit a tensor of shape \(5,\)"):
        tensor_of(np.arange(5.0), mesh("x"), world)[tensor_of(np.ones(7, bool), mesh("x"), world)]


@pytest.mark.ranks(4)
def test_masks_beside_other_indices_equal_numpy(world):
    x = mixed((5, 4, 6))
    two, one = mixed((5, 4)) > 0, mixed((4,)) > -1
    cases = [
        S[two], S[two, 1:4], S[two, ..., ::2], S[:, one], S[1:, one, 2:], S[..., one, :], S[:, x[0, :4] [:, 0].repeat(1) > -9],
        S[None, two], S[two, None], S[x > 0], S[mixed((5,)) > 0, :, [1]], S[two, 3],
    ]  # fmt: skip
    for layout in layouts(4, 3):
        t = tensor_of(x, layout.reduced, world)
        for index in cases:
            np.testing.assert_array_equal(t[index].full(), x[index], err_msg=str(index))
            computed = tuple(
                replicated(entry, layout, world)
                if isinstance(entry, np.ndarray) and entry.dtype == bool
                else entry
                for entry in (index if isinstance(index, tuple) else (index,))
            )
            np.testing.assert_array_equal(t[computed].full(), x[index], err_msg=str(index))


@pytest.mark.ranks(4)
def test_several_arrays_of_integers_equal_numpy(world):
    x = np.random.default_rng(1).normal(size=(5, 4, 6))
    i, j, k = np.array([0, -1, 2]), np.array([3, 0, 0]), np.array([[1], [5]])
    cases = [S[i, j], S[i, j, k], S[i, :, j], S[:, i, k], S[..., j, i], S[i, j, 1], S[i, 0, k], S[[0, 1], [2, 3]], S[1:, j, i], S[i, None, j]]  # fmt: skip
    for layout in layouts(4, 3):
        t = Tensor.from_global(x, layout, world, requires_grad=True)
        for index in cases:
            y = t[index]
            np.testing.assert_array_equal(y.full(), x[index], err_msg=str(index))
            index_of_tensors = tuple(
                replicated(p, layout, world) if isinstance(p, np.ndarray) else p for p in index
            )
            np.testing.assert_array_equal(t[index_of_tensors].full(), x[index], err_msg=str(index))
        t.grad = None
        dy = np.arange(18.0).reshape(3, 6)
        t[i, j].backward(replicated(dy, layout, world))
        expected = np.zeros_like(x)
        np.add.at(expected, (i, j), dy)
        np.testing.assert_array_equal(t.grad.full(), expected)


@pytest.mark.ranks(1, 3, 4)
@pytest.mark.parametrize("dtype", ["float64", "int8", "complex128", "bool"])
def test_nonzero_and_unique_equal_numpy(world, dtype):
    for shape in SHAPES if dtype == "float64" else SHAPES[:1]:
        x = mixed(shape, dtype)
        values, indices, inverse, counts = np.unique(x, True, True, True, equal_nan=False)
        for layout in layouts(world.size, len(shape)):
            t = tensor_of(x, layout.reduced, world)
            for result, expected in zip(ops.nonzero(t), np.nonzero(x), strict=True):
                check_balanced(result, expected, world)
                assert result.dtype == np.int64
            unique = ops.unique_all(t)
            check_balanced(unique.values, values, world)
            check_balanced(unique.indices, indices, world)
            check_balanced(unique.counts, counts, world)
            np.testing.assert_array_equal(unique.inverse_indices.full(), inverse.reshape(shape))
            assert unique.inverse_indices.layout == t.layout
            np.testing.assert_array_equal(ops.unique_values(t).full(), values)
            np.testing.assert_array_equal(ops.unique_counts(t).counts.full(), counts)
            np.testing.assert_array_equal(
                ops.unique_inverse(t).inverse_indices.full(), inverse.reshape(shape)
            )


@pytest.mark.ranks(4)
def test_numbers_of_selected_elements_need_one_small_gather(world):
    mesh, x = Mesh((4,), ("x",)), np.arange(4000.0)
    t = tensor_of(x, mesh("x"), world)
    mask = tensor_of(x < 1000, mesh("x"), world)  # All selected elements are on the first rank.
    with record() as trace:
        y = t[mask]
    assert trace.counts() == {"all_gather": 1, "exchange_parts": 1}
    count_event, exchange_event = trace.collectives
    assert set(count_event.planned) == {3 * 8}
    assert dict(zip(exchange_event.ranks, exchange_event.nbytes)) == {
        r: 250 * 8 * (r > 0) for r in world.ranks
    }
    check_balanced(y, x[:1000], world)
    with record() as trace:
        t[tensor_of(x % 4 == 0, mesh("x"), world)]  # These elements are balanced already.
    assert trace.counts() == {"all_gather": 1}


@pytest.mark.ranks(1, 4)
def test_isin_equals_numpy(world):
    x, values = mixed((7, 3)), np.array([[1.0, 2], [np.nan, -3]])
    for layout in layouts(world.size):
        t = tensor_of(x, layout.reduced, world)
        for invert in (False, True):
            expected = np.isin(x, values, invert=invert)
            np.testing.assert_array_equal(ops.isin(t, values, invert).full(), expected)
            split = tensor_of(values, layout.reduced, world)
            np.testing.assert_array_equal(ops.isin(t, split, invert=invert).full(), expected)


@pytest.mark.ranks(4)
def test_order_statistics_equal_numpy(world):
    rng = np.random.default_rng(2)
    for x in (
        rng.normal(size=(9, 4)),
        rng.integers(-9, 9, (8, 3)),
        mixed((6, 5)),
        rng.normal(size=(5, 4)).astype("f4"),
    ):
        for layout in layouts(world.size)[::3]:
            t = tensor_of(x, layout, world)
            for dim in (None, 0, -1, (0, 1)):
                keep = dim == 0
                np.testing.assert_allclose(
                    ops.median(t, dim, keep).full(), np.median(x, dim, keepdims=keep), rtol=1e-6
                )
                result = ops.percentile(t, [0, 30, 50.5, 100], axis=dim)
                np.testing.assert_allclose(
                    result.full(), np.percentile(x, [0, 30, 50.5, 100], dim), rtol=1e-6, atol=1e-6
                )
            for method in ("lower", "higher", "nearest", "midpoint"):
                result = ops.quantile(t, 0.4, 0, method=method)
                np.testing.assert_allclose(result.full(), np.quantile(x, 0.4, 0, method=method), rtol=1e-6)
            assert ops.median(t, 0).dtype == np.median(x, 0).dtype


@pytest.mark.ranks(1, 3, 4)
def test_bincount_and_histogram_equal_numpy(world):
    rng = np.random.default_rng(3)
    n, w, x = rng.integers(0, 7, 23), rng.normal(size=23), rng.normal(size=23)
    for layout in layouts(world.size, 1):
        layout = layout.reduced
        t, u, v = (tensor_of(array, layout, world) for array in (n, w, x))
        np.testing.assert_array_equal(ops.bincount(t).full(), np.bincount(n))
        np.testing.assert_array_equal(ops.bincount(t, minlength=12).full(), np.bincount(n, minlength=12))
        np.testing.assert_allclose(ops.bincount(t, u).full(), np.bincount(n, w), atol=1e-14)
        edges = np.array([-1.0, 0, 0.5, 3])
        for options in (
            {},
            {"bins": 4},
            {"bins": 5, "range": (-1, 2)},
            {"bins": edges},
            {"bins": 3, "density": True},
        ):
            for result, expected in zip(ops.histogram(v, **options), np.histogram(x, **options), strict=True):
                np.testing.assert_allclose(result.full(), expected, rtol=1e-14)
        np.testing.assert_array_equal(ops.histogram(t, 3)[0].full(), np.histogram(n, 3)[0])
        result = ops.histogram(v, 4, weights=u)[0]
        np.testing.assert_allclose(result.full(), np.histogram(x, 4, weights=w)[0], atol=1e-14)
    y = rng.normal(size=(5, 4))
    for layout in layouts(world.size):
        np.testing.assert_array_equal(
            ops.histogram(tensor_of(y, layout.reduced, world))[0].full(), np.histogram(y)[0]
        )


@pytest.mark.ranks(2)
def test_wrong_arguments_and_missing_values_are_refused(world):
    mesh = Mesh((2,), ("x",))
    x, n = tensor_of(np.zeros((2, 3)), mesh("x", None), world), tensor_of(np.array([1, -2]), mesh("x"), world)
    with pytest.raises(RuleError, match="q must be from 0 to 1"):
        ops.quantile(x, 1.5)
    with pytest.raises(RuleError, match="quantiles need at least one entry"):
        ops.quantile(tensor_of(np.zeros((0, 3)), mesh("x", None), world), 0.5, 0)
    with pytest.warns(RuntimeWarning, match="median of no entries is nan"):
        assert np.isnan(ops.median(tensor_of(np.zeros((0, 3)), mesh("x", None), world), 0).full()).all()
    with pytest.raises(InputError, match="numbers from 0 on, but -2 is among them"):
        ops.bincount(n)
    with pytest.raises(RuleError, match="whole numbers in one dim, but got float64"):
        ops.bincount(x)
    with pytest.raises(RuleError, match="bins must be at least 1, got 0"):
        ops.histogram(x, 0)
    with pytest.raises(RuleError, match=r"a mask of shape \(2, 2\) does not fit"):
        x[tensor_of(np.ones((2, 2), bool), mesh("x", None), world)]
    shapes = tensor_of(np.zeros((2, 3)), mesh("x", None), ShapeOnly(2))
    for call in (ops.unique_values, ops.nonzero, lambda t: t[t > 0], lambda t: ops.histogram(t)):
        with pytest.raises(WorldError, match="depends on values, which a ShapeOnly world does not have"):
            call(shapes)
    assert ops.median(shapes, 0).shape == (3,)
