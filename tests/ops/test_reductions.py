"""Products over dims and extremes have gradients, also of zeros, infinities and split dims."""

from __future__ import annotations

import numpy as np
import pytest

from spmdsim import Mesh, Tensor, nn, ops, record
from spmdsim.errors import RuleError


def slopes(x, dims):
    """Return for each element of ``x`` the product of the other elements along `dims`."""
    gradient = np.empty_like(x)
    for index in np.ndindex(x.shape):
        others = x.copy()
        others[index] = 1
        others_along_dims = tuple(slice(None) if d in dims else i for d, i in enumerate(index))
        gradient[index] = others[others_along_dims].prod()
    return gradient


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("dims", [0, 1, None])
@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_gradients_of_products_are_right_with_zeros(world, dims, zeros):
    mesh = Mesh((2, 2), ("a", "b")) if world.size == 4 else Mesh((1, 1), ("a", "b"))
    x = np.random.default_rng(0).normal(size=(4, 6))
    x[1, :zeros] = 0
    axes = tuple(range(2)) if dims is None else (dims,)
    for layout in (mesh("a", "b"), mesh(("a", "b"), None), mesh(None, "b"), mesh(None, None)):
        operand = Tensor.from_global(x, layout, world, requires_grad=True)
        y = ops.prod(operand, dims)
        np.testing.assert_allclose(y.full(), x.prod(axis=axes), rtol=1e-12)
        nn.backward(ops.sum(y))
        np.testing.assert_allclose(operand.grad.full(), slopes(x, axes), rtol=1e-9, atol=1e-12)


@pytest.mark.ranks(1, 2, 4)
@pytest.mark.filterwarnings("error")
def test_extremes_of_infinities_have_gradients(world):
    """Elements that attain the extreme have equal shares, and infinities cause no warning."""
    array = np.array([[1.0, -np.inf, 3.0, 2.0], [-np.inf] * 4, [np.inf, 2.0, np.inf, 0.0]])
    mesh = Mesh((world.size,), ("x",))
    for layout in (mesh("x", None), mesh(None, "x"), mesh(None, None)):
        for function, extreme in ((ops.max, array.max(1)), (ops.min, array.min(1))):
            x = Tensor.from_global(array, layout, world, requires_grad=True)
            y = function(x, 1)
            np.testing.assert_array_equal(y.full(), extreme)
            y.backward(Tensor.from_global(np.ones(3), mesh(None), world))
            attained = array == extreme[:, None]
            np.testing.assert_array_equal(x.grad.full(), attained / attained.sum(1, keepdims=True))


@pytest.mark.ranks(1, 4, 8)
@pytest.mark.filterwarnings("error")
def test_indices_of_extremes_need_two_small_reductions(world):
    """Argmax and argmin return the first of equal elements, and nan first.

    Shards may be empty, and nothing is gathered.
    """
    mesh = Mesh((2, world.size // 2) if world.size > 1 else (1, 1), ("a", "b"))
    rng = np.random.default_rng(3)
    integers = rng.integers(0, 3, (5, 3, 4))
    arrays = [
        integers,
        integers.astype("f4"),
        integers > 1,
        np.where(integers == 2, np.nan, integers),
        -integers[:2, :, :1],
    ]
    for x in arrays:
        for layout in (mesh("a", "b", None), mesh(("a", "b"), None, None), mesh(None, "b", "a")):
            t = Tensor.from_global(x, layout, world)
            for function, expected in ((ops.argmax, np.argmax), (ops.argmin, np.argmin)):
                for dim in (None, 0, -1):
                    indices = function(t, dim)
                    assert indices.dtype == np.int64
                    np.testing.assert_array_equal(indices.full(), expected(x, dim))
                np.testing.assert_array_equal(function(t, 1, True).full(), expected(x, 1, keepdims=True))
    t = Tensor.from_global(rng.normal(size=(64, 6)), mesh(("a", "b"), None), world)
    with record() as trace:
        ops.argmax(t, 0)
    # The reductions combine one value and one index per column.
    assert trace.counts() == ({"all_reduce": 2} if world.size > 1 else {})
    with pytest.raises(RuleError, match="argmax is not defined for complex128"):
        ops.argmax(t * 1j)
