"""Products over dims have gradients, whatever is split and whatever is zero."""

from __future__ import annotations

import numpy as np
import pytest

from spmdsim import Mesh, Tensor, nn, ops, record
from spmdsim.errors import RuleError


def slopes(x, dims):
    """The product of the other elements, one by one."""
    gradient = np.empty_like(x)
    for index in np.ndindex(x.shape):
        others = x.copy()
        others[index] = 1
        kept = tuple(slice(None) if d in dims else i for d, i in enumerate(index))
        gradient[index] = others[kept].prod()
    return gradient


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("dims", [0, 1, None])
@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_the_slope_of_a_product(world, dims, zeros):
    mesh = Mesh((2, 2), ("a", "b")) if world.size == 4 else Mesh((1, 1), ("a", "b"))
    x = np.random.default_rng(0).normal(size=(4, 6))
    x[1, :zeros] = 0
    where = tuple(range(2)) if dims is None else (dims,)
    for layout in (mesh("a", "b"), mesh(("a", "b"), None), mesh(None, "b"), mesh(None, None)):
        operand = Tensor.from_global(x, layout, world, requires_grad=True)
        y = ops.prod(operand, dims)
        np.testing.assert_allclose(y.full(), x.prod(axis=where), rtol=1e-12)
        nn.backward(ops.sum(y))
        np.testing.assert_allclose(operand.grad.full(), slopes(x, where), rtol=1e-9, atol=1e-12)


@pytest.mark.ranks(1, 2, 4)
@pytest.mark.filterwarnings("error")
def test_extremes_of_infinities_have_gradients(world):
    """Equal parts for all that attain the extreme, and no warning of an infinity times nothing."""
    whole = np.array([[1.0, -np.inf, 3.0, 2.0], [-np.inf] * 4, [np.inf, 2.0, np.inf, 0.0]])
    mesh = Mesh((world.size,), ("x",))
    for layout in (mesh("x", None), mesh(None, "x"), mesh(None, None)):
        for function, extreme in ((ops.max, whole.max(1)), (ops.min, whole.min(1))):
            x = Tensor.from_global(whole, layout, world, requires_grad=True)
            y = function(x, 1)
            np.testing.assert_array_equal(y.full(), extreme)
            y.backward(Tensor.from_global(np.ones(3), mesh(None), world))
            attained = whole == extreme[:, None]
            np.testing.assert_array_equal(x.grad.full(), attained / attained.sum(1, keepdims=True))


@pytest.mark.ranks(1, 4, 8)
@pytest.mark.filterwarnings("error")
def test_places_of_extremes_by_two_small_reductions(world):
    """Of equal ones the first, nan before all, pieces without elements, and nothing is gathered."""
    mesh = Mesh((2, world.size // 2) if world.size > 1 else (1, 1), ("a", "b"))
    rng = np.random.default_rng(3)
    whole = rng.integers(0, 3, (5, 3, 4))
    arrays = [whole, whole.astype("f4"), whole > 1, np.where(whole == 2, np.nan, whole), -whole[:2, :, :1]]
    for x in arrays:
        for layout in (mesh("a", "b", None), mesh(("a", "b"), None, None), mesh(None, "b", "a")):
            t = Tensor.from_global(x, layout, world)
            for function, expected in ((ops.argmax, np.argmax), (ops.argmin, np.argmin)):
                for dim in (None, 0, -1):
                    places = function(t, dim)
                    assert places.dtype == np.int64
                    np.testing.assert_array_equal(places.full(), expected(x, dim))
                np.testing.assert_array_equal(function(t, 1, True).full(), expected(x, 1, keepdims=True))
    t = Tensor.from_global(rng.normal(size=(64, 6)), mesh(("a", "b"), None), world)
    with record() as trace:
        ops.argmax(t, 0)
    # A value and a place for each column, reduced: each rank receives those of its block and of what is not in it.
    assert trace.counts() == ({"all_reduce": 2} if world.size > 1 else {})
    with pytest.raises(RuleError, match="argmax is not defined for complex128"):
        ops.argmax(t * 1j)
