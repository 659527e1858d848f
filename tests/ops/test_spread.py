"""Variance and standard deviation equal numpy on split dims, uneven and empty shards and large means."""

from __future__ import annotations

import numpy as np
import pytest

from spmdsim import LockStep, Mesh, Tensor, nn, ops, record
from spmdsim.core import Layout
from spmdsim.errors import RuleError

A = np.random.default_rng(0).normal(size=(7, 3, 5))


def layouts(world):
    mesh = (
        Mesh((2, world.size // 2), ("a", "b")) if world.size % 2 == 0 else Mesh((1, world.size), ("a", "b"))
    )
    return [mesh("a", None, "b"), mesh(("b", "a"), None, None), mesh(None, "b", None), mesh(None, None, None)]


@pytest.mark.ranks(1, 3, 4, 8)
@pytest.mark.parametrize("dims", [None, 0, -1, (0, 2), (0, 1, 2), ()])
@pytest.mark.parametrize("name", ["var", "std"])
def test_variances_and_deviations_equal_numpy(world, name, dims):
    for layout in layouts(world):
        x = Tensor.from_global(A, layout, world)
        for keepdims in (False, True):
            expected = getattr(A, name)(axis=dims, keepdims=keepdims)
            result = getattr(ops, name)(x, dims, keepdims)
            assert result.dtype == A.dtype
            np.testing.assert_allclose(result.full(), expected, rtol=1e-12, atol=1e-14)
        if dims != ():
            expected = getattr(A, name)(axis=dims, ddof=1)
            np.testing.assert_allclose(getattr(x, name)(axis=dims, ddof=1).full(), expected, rtol=1e-12)
            np.testing.assert_allclose(getattr(x, name)(dim=dims, correction=1).full(), expected, rtol=1e-12)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("dims", [None, 1, (0, 2)])
@pytest.mark.parametrize("correction", [0, 1, 0.5])
def test_gradients_equal_the_formula(world, dims, correction):
    count = A.size if dims is None else np.prod([A.shape[d] for d in np.atleast_1d(dims)])
    weight = np.random.default_rng(1).normal(size=np.var(A, axis=dims, keepdims=True).shape)
    slope = 2 * (A - A.mean(axis=dims, keepdims=True)) / (count - correction)
    root = np.sqrt((slope * slope).sum(axis=dims, keepdims=True) * (count - correction) / 4)
    for layout in layouts(world):
        for function, expected in ((ops.var, weight * slope), (ops.std, weight * slope / (2 * root))):
            x = Tensor.from_global(A, layout, world, requires_grad=True)
            nn.backward(ops.sum(ops.multiply(function(x, dims, True, correction=correction), weight)))
            np.testing.assert_allclose(x.grad.full(), expected, rtol=1e-10, atol=1e-13)


@pytest.mark.ranks(4)
def test_a_large_mean_costs_no_digits(world):
    """Float32 would lose all digits in the mean of squares minus the square of the mean."""
    mesh = Mesh((4,), ("a",))
    values = (10_000 + np.random.default_rng(2).normal(size=(10, 300))).astype(np.float32)
    x = Tensor.from_global(values, mesh(None, "a"), world)
    expected = values.astype(np.float64).var(axis=1)
    variance = x.var(1).full()
    assert variance.dtype == np.float32
    np.testing.assert_allclose(variance, expected, rtol=2e-5)
    np.testing.assert_allclose(x.std(1).full(), np.sqrt(expected), rtol=1e-5)


@pytest.mark.ranks(4)
def test_variances_of_short_types_integers_and_pending_values_equal_numpy(world):
    import ml_dtypes

    mesh = Mesh((4,), ("a",))
    for dtype, rtol in ((np.float16, 1e-3), (ml_dtypes.bfloat16, 8e-3)):
        values = np.random.default_rng(3).normal(size=(6, 50)).astype(dtype)
        variance = Tensor.from_global(values, mesh("a", None), world).var(0)
        assert variance.dtype == dtype
        expected = values.astype(np.float64).var(0)
        np.testing.assert_allclose(variance.full().astype(np.float64), expected, rtol=rtol)
    integers = np.arange(24).reshape(4, 6) % 7
    deviation = Tensor.from_global(integers, mesh(None, "a"), world).std(axis=1)
    assert deviation.dtype == np.float64
    np.testing.assert_allclose(deviation.full(), integers.std(axis=1), rtol=1e-12)
    pending = Tensor.from_global(A, Layout(mesh, ((), (), ()), {"a": "sum"}), world)
    np.testing.assert_allclose(pending.var(0).full(), A.var(0), rtol=1e-12)


@pytest.mark.ranks(2)
def test_equal_elements_have_gradient_0(world):
    x = Tensor.from_global(
        np.array([[2.0, 2, 2], [1, 2, 3]]), Mesh((2,), ("a",))(None, "a"), world, requires_grad=True
    )
    y = ops.std(x, 1)
    np.testing.assert_array_equal(y.full(), np.std([[2, 2, 2], [1, 2, 3]], axis=1))
    nn.backward(ops.sum(y))
    np.testing.assert_allclose(x.grad.full(), [[0, 0, 0], [-1 / np.sqrt(6), 0, 1 / np.sqrt(6)]], atol=1e-15)


@pytest.mark.ranks(4)
def test_variances_need_only_reductions_of_the_results_size(world):
    x = Tensor.from_global(A, Mesh((4,), ("a",))("a", None, None), world)
    with record() as trace:
        variance = x.var(0)
        assert trace.counts() == {"all_reduce": 1}
        variance.to(variance.layout.reduced)
    assert trace.counts() == {"all_reduce": 2} and trace.nbytes() <= 2 * 2 * 15 * 8
    x.requires_grad = True
    loss = ops.sum(x.std(0))
    with record() as trace:
        nn.backward(loss)
    assert trace.counts() == {}, "no gradient goes through the mean"


def test_undefined_variances_are_nan():
    world, mesh = LockStep(2), Mesh((2,), ("a",))
    x = Tensor.from_global(np.ones((2, 1)), mesh("a", None), world, requires_grad=True)
    for correction in (1, 2.5):
        assert np.isnan(x.std(axis=1, correction=correction).full()).tolist() == [True, True]
    assert np.isnan(Tensor.from_global(np.ones((0, 2)), mesh(None, "a"), world).var(0).full()).all()
    ops.sum(x.var(0, correction=2)).backward()
    assert np.isnan(x.grad.full()).all()
    with pytest.raises(RuleError, match="complex"):
        Tensor.from_global(np.ones(2, complex), mesh("a"), world).var()
