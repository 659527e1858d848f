"""NumPy's functions on tensors compute with shards, or are refused in one line with the name to use."""

from __future__ import annotations

import inspect
import operator
import re
from pathlib import Path

import numpy as np
import pytest

from spmdsim import LockStep, Mesh, SpmdError, Tensor, array_api, fft, linalg, ops, record
from spmdsim.arrays import random
from spmdsim.arrays.ops.along import put_along_axis

A = np.random.default_rng(1).uniform(0.5, 4, (6, 4))
B = np.random.default_rng(2).uniform(0.5, 4, (4, 6))

NAN = [
    np.nansum, np.nanprod, np.nanmax, np.nanmin, np.nanmean, np.nanstd, np.nancumsum, np.nancumprod, np.nanargmax, np.nanargmin,
    np.nanmedian, lambda x, axis=None: np.nanquantile(x, 0.3, axis=axis),
]  # fmt: skip


def holes(x, row=-1):
    """Return ``x`` with nan in scattered elements, and in all of a `row` of 0 or more."""
    return np.where(((A * 100).astype(int) % 3 == 0) | (np.arange(6)[:, None] == row), np.nan, x)


def cube(x):
    """Return the elements of ``x`` in three dims."""
    return x.reshape(3, 4, 2)


def with_put(x, ids, values, axis):
    """Return a copy of ``x`` with `values` at indices ``ids`` along `axis`."""
    copy = np.copy(x)
    np.put_along_axis(copy, ids, values, axis)
    return copy


def with_diagonal(x, value):
    """Return a copy of ``x`` with `value` on the diagonal."""
    copy = np.copy(x)
    np.fill_diagonal(copy, value)
    return copy


def with_new(function, x, *args, **options):
    """Return a copy of ``x`` into which `function` has written values."""
    copy = np.copy(x)
    function(copy, *args, **options)
    return copy


FUNCTIONS = [
    np.exp, np.sqrt, np.sum, np.ravel, np.transpose, np.count_nonzero, np.shape, np.ndim, np.zeros_like, np.abs,
    lambda x: np.sum(x, axis=0), lambda x: np.sum(x, 1, keepdims=True), lambda x: np.sum(a=x, dtype="f4"),
    lambda x: np.add.reduce(x), lambda x: np.maximum.reduce(x, axis=1), lambda x: np.multiply.outer(x, A[0]),
    lambda x: np.add.accumulate(x), lambda x: np.cumsum(x, axis=1), lambda x: np.mean(x, axis=-1), lambda x: np.std(x, ddof=1),
    lambda x: np.concatenate([x, A], axis=1), lambda x: np.concatenate((x, x), axis=None), lambda x: np.stack([x, x], axis=1),
    lambda x: np.vstack([x, x]), lambda x: np.hstack([x, x]), lambda x: np.where(x > 2, x, 0), lambda x: np.clip(x, 1, 2),
    lambda x: np.clip(x, a_min=1, a_max=None), lambda x: np.einsum("ij,kj->ik", x, A), lambda x: np.dot(x, B), lambda x: x @ B,
    lambda x: B @ x, lambda x: A + x, lambda x: np.float64(2) / x, lambda x: np.add(1, x), lambda x: np.round(x, 1),
    lambda x: np.pad(x, 1), lambda x: np.pad(x, ((1, 0), (0, 2)), constant_values=3), lambda x: np.pad(x, (1, 2), mode="constant"),
    lambda x: np.tile(x, 2), lambda x: np.repeat(x, 2, axis=0), lambda x: np.moveaxis(x, 0, 1), lambda x: np.flip(x, 0),
    lambda x: np.argmax(x, axis=1), lambda x: np.reshape(x, (3, 8)), lambda x: np.take(x, [1, -1], axis=1), np.tril, np.isfinite,
    lambda x: np.divmod(x, 2)[1], lambda x: np.all(np.isclose(x, A)), lambda x: np.allclose(x, x + 1), lambda x: np.sort(x, axis=0),
    lambda x: np.array_equal(x, x), lambda x: np.tensordot(x, B, 1), lambda x: np.split(x, 2)[1], lambda x: np.expand_dims(x, 0),
    lambda x: np.linalg.norm(x, axis=1), lambda x: np.linalg.inv(x[:4]), lambda x: np.fft.fft(x, axis=0), lambda x: np.fft.rfft2(x),
    lambda x: np.outer(x[0], x[1]), lambda x: np.trace(x[1:5]), lambda x: np.einsum("ij,kj", x, A), lambda x: np.cross(x[:, :3], A[:, 1:]),
    *[lambda x, f=f: f(holes(x), axis=0) for f in NAN], *[lambda x, f=f: f(holes(x)) for f in NAN], lambda x: np.nanvar(x, 1, ddof=1),
    lambda x: np.nanmean(holes(x, 4), axis=1, keepdims=True), lambda x: np.nanmax(holes(x, 4), axis=1), lambda x: np.nanmin(x > 2, 0),
    lambda x: np.nanpercentile(holes(x), [10, 50, 99], axis=1), lambda x: np.nan_to_num(np.log(x - x) - np.where(x > 2, np.inf, 0), neginf=-3),
    lambda x: np.diag(x), lambda x: np.diag(x, -2), lambda x: np.diag(x[:, 1], 2), lambda x: np.diag(x[0], -1), lambda x: np.diagflat(x),
    lambda x: np.array_split(x, 4)[1], lambda x: np.array_split(x, [1, 5], axis=0)[1], lambda x: np.hsplit(x, 2)[0], lambda x: np.kron(x, B[0]),
    lambda x: np.kron(B, x), lambda x: np.ptp(x, axis=0), lambda x: np.inner(x, A), lambda x: np.vdot(x, A), lambda x: np.average(x, 0, A), np.unique,
    lambda x: np.average(x, 1, A[0]), lambda x: np.sum(x, axis=0, where=A > 2, initial=1), lambda x: np.max(x, initial=9), np.fliplr, np.flip,
    lambda x: np.min(x, where=x > 2, initial=9.0), lambda x: np.trace(cube(x)), lambda x: np.trace(cube(x), 1, 2, 0), np.atleast_3d, np.flipud,
    lambda x: np.diagonal(cube(x)), lambda x: np.diagonal(cube(x), -1, axis1=1, axis2=2), np.cumsum, np.cumprod, np.ediff1d, np.rot90,
    lambda x: np.rot90(x, 3, (1, 0)), lambda x: np.rot90(x, 2), lambda x: np.rollaxis(x, 1), lambda x: np.sort(x, axis=None), np.fix, np.cov,
    lambda x: np.partition(x, 2, axis=0)[2], lambda x: np.argpartition(x[:, 0], 3)[3], lambda x: np.dstack([x, x]), np.cbrt, np.exp2, np.sinc,
    lambda x: np.column_stack([x[0], x[1]]), lambda x: np.append(x, 3.0), lambda x: np.append(x, A, 0), np.argwhere, lambda x: np.argwhere(x[0, 0]), lambda x: np.argwhere(x[0, 0] > 9), np.deg2rad, np.degrees,
    lambda x: np.flatnonzero(x > 2), lambda x: np.where(x > 2)[1], lambda x: np.extract(x > 2, x), lambda x: np.compress([1, 0, 1], x, 0),
    lambda x: np.compress([1, 0, 1], x), lambda x: np.select([x > 3, x > 2], [x, -x], 7), lambda x: np.digitize(x, [1, 2.5]), np.angle, np.copy,
    lambda x: np.digitize(np.trunc(x), [1.0, 2, 3], right=True), lambda x: np.unique(np.trunc(x), True, True, True)[2], np.isreal,
    lambda x: [np.unique(holes(x), return_counts=True)[k] for k in (0, 1)][1], lambda x: np.unique(holes(x), return_inverse=True)[1], np.corrcoef,
    lambda x: np.unique(holes(x)), lambda x: np.unique(holes(x), equal_nan=False), lambda x: np.union1d(x, [9, 1]), lambda x: np.outer(x, x[0]),
    lambda x: np.intersect1d(np.trunc(x), [2, 3, 8]), lambda x: np.setdiff1d(np.trunc(x), [2]), lambda x: np.gradient(x, 0.5, axis=1),
    lambda x: np.gradient(x, 2, 3)[0], lambda x: np.trapezoid(x, dx=2), lambda x: np.trapezoid(x, A[:, 0] * 2, axis=0), lambda x: np.trapezoid(x, A ** 2, axis=0), lambda x: np.trapezoid(x, A ** 2), lambda x: np.trapezoid(x, A[0] * 2), lambda x: np.size(x, 1),
    lambda x: np.cov(x[0]), lambda x: np.cov(x, rowvar=False, bias=True), lambda x: np.correlate(x[:, 0], [1, 2, 3]), lambda x: np.vander(x[0], 3),
    lambda x: np.interp(x, [1, 2, 3], [0, 5, 6]), lambda x: np.interp(x, [1, 2], [0, 5], left=-1, right=8), lambda x: np.polyval([1, 2, 3], x),
    lambda x: np.fmod(x - 2, 0.7), lambda x: np.fmod((x * 9).astype(int) - 18, -4), lambda x: np.fmax(holes(x), 2), lambda x: np.fmin(2, holes(x)),
    lambda x: np.fabs((x - 2).astype(int)), lambda x: np.float_power(x.astype(int), 2), lambda x: np.heaviside(np.trunc(x) - 2, 0.5),
    lambda x: np.angle(x - 2j), lambda x: np.angle(2 - x, deg=True), lambda x: np.array_equiv(x, A[0]), lambda x: np.allclose(holes(x), holes(A), equal_nan=True),
    lambda x: np.round(x * 100, -1), lambda x: np.median((x * 9).astype(np.int8), 0), lambda x: np.median(x > 2), lambda x: x.flatten(), lambda x: x.ravel(),
    lambda x: np.reshape(x, (3, 8), order="F"), lambda x: np.ravel(x, "F"), lambda x: x.flatten("F"), lambda x: cube(x).reshape(2, -1, order="F"),
    lambda x: x.reshape(3, 8), lambda x: x.transpose(1, 0), lambda x: x.trace(), lambda x: x.argsort(0, "stable"), lambda x: x.diagonal(1), lambda x: x.cumsum(), lambda x: x.dot(B), lambda x: x.round(1),
    lambda x: (x + 2j).imag, lambda x: (x + 2j).real, lambda x: x.nbytes, lambda x: x.item(5), lambda x: x.item(1, -1), lambda x: x.tolist(), lambda x: A[0, 0] in x, lambda x: 77 in x,
    lambda x: np.sum(x, 0, np.float32), lambda x: np.max(x, 0, None, True), lambda x: np.std(x, 0, None, None, 1), lambda x: np.sort(x, 0, "stable"),
    lambda x: np.median(x, 1, None, False, True), lambda x: np.percentile(x, 30, 0, None, False, "lower"), lambda x: np.ptp(x, 1, None, True),
    lambda x: np.linalg.norm(x, None, 1, True), lambda x: np.cumsum(x, 1, np.float32), lambda x: np.argmax(x, 0, None), lambda x: np.unique(x, True)[1],
    lambda x: np.fft.fft(x, 5, 0, "ortho"), lambda x: np.histogram(x, 5, (1, 3))[0], lambda x: np.pad(x, 1, "constant", constant_values=2), lambda x: np.mean(x, 0, np.float32),
    lambda x: np.linalg.svd(x, False)[1], lambda x: abs(np.linalg.qr(x, "reduced")[1]), lambda x: np.tril(x, 1), lambda x: np.all(x, 0, None, True), lambda x: np.diff(x, 2, 0),
    lambda x: np.allclose(x, A + 1e-3, 0, 1e-2), lambda x: np.zeros_like(x, np.int8), lambda x: np.full_like(x, 3, np.int8), lambda x: np.nan_to_num(holes(x), True, 7.0),
    lambda x: np.nanmax(holes(x), 0, None, True), lambda x: np.nansum(holes(x), 1, np.float32), lambda x: np.nanstd(holes(x), 0, None, None, 1), lambda x: np.nanmedian(holes(x), 0),
    lambda x: np.cbrt((x * 99).astype(np.uint8)), lambda x: np.cov(x.astype("f4")), lambda x: np.polyval([1, 2], x.astype("f4")),
    lambda x: np.searchsorted([1, 2, 3], x[0]), lambda x: np.bincount(x[0].astype(int), weights=A[1]), lambda x: np.bincount(x[:, 0].astype(int), None, 9),
    # Compute these in the type of the argument dtype, instead of converting the result.
    lambda x: np.exp((x * 9).astype(np.uint8), dtype=np.float64), lambda x: np.power((x * 2).astype(np.uint8), 5, dtype=np.float64),
    lambda x: np.prod((x * 1e5).astype(np.int64), 0, dtype=complex), lambda x: x.sum(0, dtype=np.float32), lambda x: x.mean(dtype=np.float32),
    lambda x: np.nanmean(holes(x).astype("f4"), 0), lambda x: np.nanvar(holes(x).astype("f4"), 1), lambda x: np.nanvar(holes(x + 1j * A), 0),
    lambda x: np.nanstd(np.where(x > 2, np.inf, x), 0), lambda x: np.nanmedian(cube(holes(x)), (0, 2), keepdims=True),
    lambda x: np.nanquantile(x, [[0.1, 0.2], [0.5, 1]], 0), lambda x: np.nanargmin(holes(x), 1, keepdims=True), lambda x: np.nan_to_num(np.where(x > 2, np.inf, x) + 2j),
    lambda x: np.mean(x, 0, where=A > 2), lambda x: np.std(x, 0, ddof=1, where=x > 1), lambda x: np.var(x + 1j * x * x, 1), lambda x: np.average(x, (0, 1), A),
    lambda x: np.isclose((x * 9).astype(np.uint8), (A * 9).astype(np.uint8)[:, ::-1], rtol=0.5), lambda x: np.isclose(x > 2, A > 3), lambda x: np.angle(np.where(x > 2, np.inf, -x)),
    lambda x: np.angle(x > 2), lambda x: np.heaviside((x * 2).astype(int) - 4, 2), lambda x: np.heaviside(A - 2, x), lambda x: np.reciprocal((x - 2).astype(int) * 2 + 1),
    lambda x: np.isreal(holes(x)), lambda x: np.iscomplex(x + 1j * (x > 2)), lambda x: np.isposinf(np.where(x > 2, np.inf, x)), lambda x: np.isneginf(-np.where(x > 2, np.inf, x)),
    lambda x: np.modf(x - 2)[0], lambda x: np.modf(x - 2)[1], lambda x: np.logaddexp2(x, A), lambda x: np.gcd((x * 9).astype(int), 6), lambda x: np.lcm((x * 9).astype(int), 6),
    lambda x: np.interp(x, [1, 2, 3], [0, 5j, 6]), lambda x: np.cov(x[:, :1], rowvar=False), lambda x: np.cov(x, A[:2] * 2), lambda x: np.corrcoef(x[0], A[1]),
    lambda x: np.convolve(x[0], A[:, 1]), lambda x: np.correlate(x[0], A[:, 1], "full"), lambda x: np.digitize(x, [3, 2, 1]), lambda x: np.dsplit(cube(x), 2)[1],
    lambda x: np.select([A > 3, x > 2], [1, x], 7), lambda x: np.setxor1d(np.trunc(x), [2, 8]), lambda x: np.max(x, 0, initial=2), lambda x: np.sum((x * 9).astype(int), initial=1.5),
    lambda x: np.linalg.vecdot(x, A[:, 0], axis=0), lambda x: np.diagflat(x > 2), lambda x: np.einsum("ii->i", x[:4]), lambda x: np.einsum("ii", x[:4]), lambda x: np.einsum("iji->j", cube(x)[:2]),
    lambda x: np.einsum("...ii,i->...", cube(x)[:, 1:3], [1, 2], optimize=True), lambda x: np.linalg.norm((x * 9).astype(np.int8), axis=0), lambda x: np.linalg.cond(x[:4], "fro"),
    lambda x: np.linalg.cond(x, -2), lambda x: np.linalg.pinv(x, 0.5), lambda x: np.linalg.eigvalsh(x[:4], "U"), lambda x: np.linalg.eigh(x[:4] * (1 + 1j), UPLO="U")[0], lambda x: np.linalg.svd(x, compute_uv=False),
    lambda x: abs(np.linalg.qr(x, "r")), lambda x: np.linalg.matrix_rank(x, tol=3), *[lambda x, m=m: np.pad(x, ((1, 2), (3, 9)), m) for m in ("edge", "wrap", "reflect", "symmetric")],
    lambda x: np.correlate(x[0], A.ravel()[:9] * (1 + 2j), "same"), lambda x: np.select([x > 2], [x.astype("f4")], 7),
    lambda x: np.select([x > 3, x > 2], [1, x.astype("f4")], 7), lambda x: np.gradient((x * 40).astype(np.int8), axis=0), lambda x: np.take_along_axis(x, np.argsort(A, 0), 0),
    lambda x: np.trapezoid((x * 30).astype(np.uint8).astype(np.uint16)), lambda x: np.max(x > 2, 0, where=A > 2, initial=0), lambda x: np.hstack([x[0], x[1]]), lambda x: np.dot(cube(x), B[:2, 0]), np.iscomplexobj, lambda x: np.atleast_2d(x[0]),
    # NumPy supports these since 2.4: before, sinc(0) was nan in float16, and pad took no dict.
    *([lambda x: np.sinc(np.trunc(x - 2).astype(np.float16)), lambda x: np.pad(x, {0: 1, -1: (0, 2)})] if np.lib.NumpyVersion(np.__version__) >= "2.4.0" else []),
    # NumPy's pairwise contractions would add these up in a short type.
    lambda x: np.einsum("j,ij->", x[0], A > 1), lambda x: np.einsum("j,ij->", x[0], (x * 50).astype(np.uint8)), lambda x: np.einsum("ij,ij,ik->k", x > 1, x, x > 0),
    lambda x: np.take(x, 1, axis=0), lambda x: np.take(x, -1), *[lambda x, m=m: np.quantile((x * 9).astype(np.int8), [0.3, 0.5], 0, method=m) for m in ("lower", "higher", "nearest")],
    lambda x: np.percentile((x * 9).astype(np.int64) + 2**60, 30, method="lower"), lambda x: np.histogram(x.astype("f4"), 5)[1], lambda x: np.histogram(x.astype("f2"), 5, (1, 2))[1],
    *[lambda x, f=f, v=v: f(np.where(x > 2, v, x), 0) for f in (np.median, np.nanmedian) for v in (np.inf, -np.inf)],
    lambda x: np.insert(x, 2, A[0], 0), lambda x: np.insert(x, [5, -6, 5], A[:3] * 9, 0), lambda x: np.insert(x[:, 0].astype(int), 6, [1.5, 2]), lambda x: np.insert(x, slice(1, None, 2), 7),
    lambda x: np.delete(x, -2, 0), lambda x: np.delete(x, [0, 3, 0], 1), lambda x: np.delete(x, slice(None, None, 3)), lambda x: np.delete(x, A[0] > 2, 1),

    lambda x: with_put(x, np.argmax(x, 0, keepdims=True), A[:1] + 50, 0), lambda x: with_put(x, A[:, :2].astype(int) - 4, 7, 1), lambda x: with_put(x, np.argsort(A, 0)[::2], A[:3], 0),
    lambda x: with_put(x, np.array([3, -1]), [8, 9], None), lambda x: np.round(np.where(x > 2, np.inf, x) + 1j * x, 1), lambda x: np.round((x * 900).astype(int), -2),
    *[lambda x, m=m: np.percentile(x.astype("f4"), [30, 50], 0, method=m) for m in ("midpoint", "linear", "lower")], lambda x: np.quantile(x.astype("f4"), 0.3, method="midpoint"),

    lambda x: np.block([[x, A[:, :1]], [7, x[0]]]), lambda x: np.block([[[x]], [[A]]]), lambda x: np.block(x),
    lambda x: x[np.tril_indices_from(x, -1)], lambda x: x[np.triu_indices_from(x[:3])], lambda x: x[:4][np.diag_indices_from(x[:4])],
    lambda x: np.quantile((x * 9).astype(np.int8), 1, 0), lambda x: np.quantile(x.astype("f4"), [0, 1]),
    lambda x: np.unravel_index(np.argmin(x), x.shape)[1], lambda x: x[np.unravel_index(np.argsort(x, None), x.shape)], lambda x: with_diagonal(x, 3), lambda x: with_diagonal(np.sort(x.T), 7.5),
    lambda x: np.maximum.accumulate(x), lambda x: np.minimum.accumulate((x * 9).astype(np.uint8), axis=1),
    lambda x: np.polyfit(x[:, 0], x[:, 1], 2), lambda x: np.polyfit(np.arange(6), x, 1), lambda x: np.polyval(x[0], A), lambda x: np.interp(x, np.sort(x, None), np.cumsum(x)),



    lambda x: with_new(np.copyto, x, A[0] * 2), lambda x: with_new(np.copyto, x, 5, where=A[0] > 2), lambda x: with_new(np.copyto, (x * 9).astype(np.int8), np.int64(3), where=x > 2),
    lambda x: with_new(np.put, x, [3, -1, 5, 3], [7, 8]), lambda x: with_new(np.put, x, np.argmax(x), 9.5), lambda x: with_new(np.put, x, [[0, 9]], x[0, :2]),

    lambda x: np.interp(A, np.sort(x[0]), A[1], right=-1), lambda x: np.insert(x, np.argmax(x, 0), 9, 0), lambda x: np.delete(x, np.argmin(x[0]), 1), lambda x: np.delete(x[0], x[0] > 2),
]  # fmt: skip


@pytest.mark.ranks(4)
def test_item_moves_only_one_element(world):
    mesh = Mesh((4,), ("a",))
    x = Tensor.from_global(A, mesh("a", None), world)
    with record() as trace:
        assert (x.item(5), x.item(-1), x.item((2, -3))) == (A.item(5), A.item(-1), A.item(2, -3))
    assert all(nbytes <= A.itemsize for event in trace.collectives for nbytes in event.nbytes)


@pytest.mark.ranks(4)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", range(0, len(FUNCTIONS), 20))
def test_numpys_functions_on_tensors_equal_numpy(world, first):
    for number in range(first, min(first + 20, len(FUNCTIONS))):
        compare_with_numpy(world, FUNCTIONS[number], number)


def compare_with_numpy(world, function, number):
    """Compare a function's results on tensors of a world with NumPy's; a failure shows its `number`.

    The number is the function's index in FUNCTIONS.
    """
    mesh = Mesh((2, 2), ("a", "b"))
    expected = function(A)
    for dims in (("a", "b"), (("a", "b"), None), (None, None)):
        result = function(Tensor.from_global(A, mesh(*dims), world))
        array = result.full() if isinstance(result, Tensor) else np.asarray(result)
        assert (array.shape, array.dtype) == (np.shape(expected), np.asarray(expected).dtype)
        np.testing.assert_allclose(array, expected, rtol=1e-6 if array.dtype == "f4" else 1e-12)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("dims", [("x", None), (None, "x")])
def test_functions_of_local_elements_move_nothing(world, dims):
    x, axis = Tensor.from_global(A, Mesh((4,), ("x",))(*dims), world), dims.index(None)
    with record() as trace:
        y = np.exp(x) + np.sum(x, axis=axis, keepdims=True)
        products = np.vdot(x, y)
        np.multiply(y, 2, out=x)
    assert not trace.nbytes() and x.layout == y.layout and products.layout.partial_axes == ("x",)
    expected = np.exp(A) + A.sum(axis, keepdims=True)
    np.testing.assert_allclose(x.full(), 2 * expected)
    np.testing.assert_allclose(products.full(), np.vdot(A, expected))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x: np.add(A, x, out=(A,)), r"^np.add of tensors puts its result into tensors, but out= is ndarray"),
        (lambda x: np.exp(x, where=A > 1), r"^np.exp of tensors takes no where=; it takes x$"),
        (lambda x: np.packbits(x), r"^np.packbits takes no tensors; of an array that every rank has, use x.full\(\)$"),
        (lambda x: np.interp(x, [2, 1], [2, 3]), r"^np.interp takes ascending places, but got \[2, 1\]$"),
        (lambda x: np.interp(x, [2, 1], [2]), r"^np.interp takes places and as many values, but got \(2,\) and \(1,\)$"),
        (lambda x: np.fill_diagonal(x[0], 1), r"^np.fill_diagonal takes a matrix, but the shape is \(4,\)$"),
        (lambda x: np.unique(x, axis=0), r"^np.unique of tensors compares elements, not slices along an axis=$"),
        (lambda x: np.where(x > 2, x), r"^np.where takes a condition, or a condition and two operands, but got one$"),
        (lambda x: np.min(x, where=x > 2), r"^np.min with where= has to be told what there is without elements: initial=$"),
        (lambda x: np.gradient(x, A[0], axis=1), r"^np.gradient of tensors takes a number as the length of a step"),
        (lambda x: np.gradient(x[:1]), r"^np.gradient needs two elements along a dim, but the shape is \(1, 4\)$"),
        (lambda x: np.diagonal(x, 0, 1, 1), r"^np.diagonal takes two different dims, but got \(1, 1\)$"),
        (lambda x: np.average(x, weights=[1, 2]), r"^np.average of tensors takes weights of the shape \(6, 4\), not \(2,\)$"),
        (lambda x: x.sum(0, np.float32), r"^keepdims must be True or False, got <class 'numpy.float32'>"),
        (lambda x: x.argmax(0, "out"), r"^keepdims must be True or False, got 'out'"),
        (lambda x: ops.sort(x, 0, "stable"), r"^descending must be True or False, got 'stable'"),
        (lambda x: x.item(99), r"^item: the index must be inside of shape \(6, 4\), got \(99,\)$"),
        (lambda x: np.nanargmax(x * np.nan), r"^np.nanargmax: there are rows of nothing but nan along axis None"),
        (lambda x: np.split(x, 4), r"dim 0 of size 6 does not split into 4 equal parts: np.array_split does"),
        (lambda x: np.subtract.reduce(x), r"^np.subtract.reduce takes no tensors; np.subtract does"),
        (lambda x: np.rot90(x, axes=(1, -1)), r"^np.rot90 takes two different dims, but got \(1, -1\)$"),
        (lambda x: np.vsplit(x[0], 2), r"^np.vsplit takes 2 dims at least, but the shape is \(4,\)$"),
        (lambda x: np.rollaxis(x, 3), r"^rollaxis: dim 3 is out of range for a tensor of 2 dims$"),
        (lambda x: np.isnan(x, dtype=np.float32), r"^np.isnan gives bool, not float32; use .astype on what it gives$"),
        (lambda x: np.fmod(x, 1j), "^np.fmod is not defined for complex128: complex numbers have no order$"),

        (lambda x: np.block([x, [x]]), "^np.block takes lists that are nested alike and not empty, but got"),

        (lambda x: np.exp(x + 1j, dtype=np.float64), r"^np.exp of complex128 does not compute in float64; use .astype first$"),
        (lambda x: np.digitize(x, [1, 3, 2]), r"^np.digitize of tensors takes bounds in order, but got \[1, 3, 2\]$"),
        (lambda x: np.linalg.eigh(x[:4], "X"), r"^eigh: UPLO must be 'L' or 'U', got 'X'$"),
        (lambda x: np.einsum("ii->i", x), r"^einsum: 'i' is 6 and 4 in shape \(6, 4\)$"),
        (lambda x: np.pad(x, 1, "mean"), r"^pad has the modes 'constant', 'edge', 'wrap', 'reflect', 'symmetric', but got 'mean'$"),
        (lambda x: np.pad(x[:0], 1, "edge"), r"^pad in the mode 'edge' repeats elements, but dim 0 of shape \(0, 4\) has none$"),
        (lambda x: np.delete(x, x[0]), r"^np.delete along a dim of size 24: arrays used as indices must be of integer"),
        (lambda x: np.insert(x, 9, 1, 0), r"^np.insert along a dim of size 6: index 9 is out of bounds"),
        (lambda x: np.put_along_axis(x, A[:, :2], 1, 1), r"^entries of dim 1 are looked up by integers, but the ids are float64$"),



        (lambda x: np.copyto(np.copy(A), x), r"^np.copyto takes a tensor first when others are tensors, but got ndarray$"),
        (lambda x: np.copyto(x, 1j), r"^np.copyto in place must keep the element type float64, got complex128; give the result a new name, or convert it first$"),

        (lambda x: np.put(x, [1, 2], []), r"^np.put repeats values, but got none for shape \(2,\)$"),
        (lambda x: np.put(x, [99], 1), r"99"),
        (lambda x: np.apply_along_axis(sum, 0, x), r"^np.apply_along_axis takes no tensors; use a function with axis=, or spmdsim.local_map"),
        (lambda x: np.linalg.multi_dot([x, x.T, x]), r"^np.linalg.multi_dot takes no tensors; use a @ b @ c$"),
        (lambda x: np.spacing(x), r"^np.spacing takes no tensors"),
        (lambda x: np.asarray(x), r"use .full\(\) on all ranks"),
    ],
)  # fmt: skip
def test_unsupported_calls_are_refused_in_one_line(call, text):
    x = Tensor.from_global(A, Mesh((4,), ("x",))("x", None), LockStep(4))
    with pytest.raises(SpmdError, match=text) as caught:
        call(x)
    assert "\n" not in str(caught.value)


#: Functions that need no tensor.
_OF_NUMBERS = {"fftfreq", "rfftfreq"}


@pytest.mark.ranks(4)
@pytest.mark.parametrize("dims", [("x", None), (None, "x")], ids=str)
def test_gradients_belong_to_remaining_elements_and_to_last_values(world, dims):
    layout = Mesh((4,), ("x",))(*dims)
    x, v = (Tensor.from_global(a, layout, world, requires_grad=True) for a in (A, A[:3]))
    ids = np.array([[0, 1, 2, 5], [3, 1, 2, 0], [0, 4, 4, 5]])
    weights = np.arange(24.0).reshape(6, 4) + 1
    (put_along_axis(x, ids, v, 0) * weights).sum().backward()
    written, numbers = np.full((6, 4), -1), np.arange(12).reshape(3, 4)
    np.put_along_axis(written, ids, numbers, 0)
    np.testing.assert_array_equal(x.grad.full(), np.where(written < 0, weights, 0))
    last = np.take_along_axis(written, ids, 0) == numbers
    np.testing.assert_array_equal(v.grad.full(), np.where(last, np.take_along_axis(weights, ids, 0), 0))
    x.grad = None
    (np.delete(np.insert(x, 2, A[0], 0), [0, 5], 0) * weights[:5]).sum().backward()
    expected = np.zeros((6, 4))
    expected[[1, 2, 3, 5]] = weights[[0, 2, 3, 4]]
    np.testing.assert_array_equal(x.grad.full(), expected)


@pytest.mark.ranks(4)
def test_entries_are_replaced_without_communication(world):
    x = Tensor.from_global(A, Mesh((4,), ("x",))("x", None), world)
    with record() as trace:
        np.put_along_axis(x, np.array([[5, 0, 1, 2]]), 7.0, 0)
    assert not trace.nbytes() and x.layout.placement_text() == "S(0)"


@pytest.mark.parametrize("value", [3.0, A[0]], ids=["number", "row"])
def test_gradients_pass_through_a_copy(value):
    x = Tensor.from_global(A, Mesh((2,), ("x",))("x", None), LockStep(2), requires_grad=True)
    y = x.copy()
    y[1] = value
    np.sum(y * A).backward()
    np.testing.assert_array_equal(x.grad.full(), np.where(np.arange(6)[:, None] == 1, 0, A))


@pytest.mark.parametrize("package", [ops, linalg, fft], ids=lambda package: package.__name__)
def test_operands_that_are_no_tensors_are_refused(package):
    names = [name for name in package.__all__ if not inspect.isclass(getattr(package, name))]
    for name in sorted(set(names) - _OF_NUMBERS):
        for operands in ((np.ones((4, 4)), np.ones((4, 4))), ([np.ones(3)],), (np.ones((4, 4)), 1)):
            try:
                getattr(package, name)(*operands)
            except (SpmdError, TypeError) as error:
                # Python itself reports too many or too few arguments.
                assert isinstance(error, SpmdError) or "argument" in str(error), (name, operands, error)


def takes_tensors(called):
    """Return False if a function of NumPy is refused because no function here has its name."""
    for count in (1, 2, 3):
        x = Tensor.from_global(np.eye(4), Mesh((2,), ("x",))("x", None), LockStep(2))
        try:
            called(*[x] * count)
        except Exception as error:  # Most functions refuse these operands for another reason.
            if "takes no tensors" in str(error):
                return False
    return True


@pytest.mark.filterwarnings("ignore")
def test_heats_names_are_numpys_or_have_a_documented_spelling():
    text = (Path(__file__).parents[2] / "docs/howto/numpy.md").read_text().split("## Heat's names")[1]
    same, table = text.split("| Heat | here |\n|---|---|\n")
    names = re.findall(r"`([a-z_]\w+(?:\.\w+)*)`", same)
    assert len(names) > 140
    for name in names:
        assert takes_tensors(operator.attrgetter(name.removeprefix("np."))(np)), name
    assert not takes_tensors(np.i0)
    mesh = Mesh((2,), ("x",))
    rows, row, columns = mesh("x", None), mesh("x"), mesh(None, "x")
    x, y, v = (
        Tensor.from_global(a, layout) for a, layout in ((A[:, :2], rows), (A[:, 2:], rows), (A[0] * 2, row))
    )
    v, a = np.append(v, v), A
    variables = {
        "np": np,
        "ops": ops,
        "xp": array_api,
        "random": random,
        "Tensor": Tensor,
        "u": x,
        "vh": x.T,
        "a": a,
    }
    variables |= {"x": x, "y": y, "v": v, "mesh": mesh, "rows": rows, "row": row, "columns": columns}
    spellings = [
        spelling for line in table.splitlines() for spelling in re.findall(r"`([^`]+)`", line.split("|")[2])
    ]
    expressions = [
        spelling
        for spelling in spellings
        if re.search(r"[(\[]|[-+*/%<=] ", spelling) and "path" not in spelling
    ]
    assert len(expressions) > 35
    for spelling in expressions:
        eval(spelling, dict(variables))


@pytest.mark.ranks(4)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "function",
    [
        # Functions that do not work by element convert numbers to arrays first; a condition's type does not count.
        lambda x: np.append(x, 1e40), lambda x: np.dot(x, 2), lambda x: np.kron(x, 0.5), lambda x: np.outer(300, x[0]), lambda x: np.inner(x, 2.0),
        lambda x: np.vdot(x[0, 0], 3), lambda x: np.polyval(x[0], 1e6), lambda x: np.setdiff1d(x, 300), lambda x: np.intersect1d(x, [0.5, 2]),
        lambda x: np.where(x, 1e6, 0), lambda x: np.where(x, np.uint8(200), 2), lambda x: np.where(x, x, 2), lambda x: np.float_power(1e6, x),
        lambda x: np.select([x > 1, x < 0], [x, [0.5]], 3),
        lambda x: np.heaviside(x.astype(np.int8), np.uint8(3)), lambda x: np.reciprocal(x >= 0), lambda x: np.concatenate(x), lambda x: np.concatenate(x, axis=None),
        lambda x: x.astype(np.uint8) > -1, lambda x: x.astype(np.int8) == 300, lambda x: x.astype(np.int64) >= 2**70, lambda x: np.logical_and(x.astype(np.int8), 1000),
        lambda x: np.quantile(np.where(x > 3, -np.inf, x), 0.45, axis=0), lambda x: np.nanquantile(np.where(x > 3, -np.inf, x), 0.45, axis=0),
        lambda x: np.convolve(x[0], 4),
        lambda x: np.mean(x.astype(np.int64) + (2**62), where=[True, False, True, True], axis=1), lambda x: np.mean(x, dtype=np.complex64),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["f2", "i1", "u4", "f8"])
def test_numbers_and_types_are_promoted_as_in_numpy(world, function, dtype):
    array = np.array([[2, 1, 0, 3], [1, 0, 2, 2], [5, 3, 1, 0], [4, 4, 1, 2], [0, 1, 2, 3]]).astype(dtype)
    expected = function(array)
    for dims in (("a", "b"), (None, None)):
        result = function(Tensor.from_global(array, Mesh((2, 2), ("a", "b"))(*dims), world)).full()
        assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_allclose(result, expected, rtol=4e-3 if dtype == "f2" else 1e-6)


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda x: np.mean(x, dtype=np.int64),
            "np.mean gives float64, not int64; use .astype on what it gives",
        ),
        (lambda x: np.var(x, dtype=np.complex128), "np.var gives float64, not complex128"),
        (
            lambda x: np.var(x * 1j, dtype=np.float32),
            "np.var of complex128 does not compute in float32; use .astype first",
        ),
        (lambda x: np.full_like(x, [1, 2]), "fill_value must be one number, got an array of shape (2,)"),
        (
            lambda x: np.pad(x, 1, constant_values=300),
            "pad: 300 cannot be an element of int8",
        ),
        (lambda x: np.pad(x, 1, constant_values=1j), "pad: 1j cannot be an element of int8"),
    ],
)
def test_types_and_numbers_that_do_not_fit_are_refused(world, function, message):
    x = Tensor.from_global(np.arange(4, dtype=np.int8), Mesh((2,), ("a",))("a"), world)
    with pytest.raises(SpmdError, match=re.escape(message)):
        function(x)
