"""Products over dims have gradients, whatever is split and whatever is zero."""

from __future__ import annotations

import numpy as np
import pytest

from spmdsim import Mesh, Tensor, nn, ops


def slopes(x, dims):
    """The product of the other elements, one by one."""
    found = np.empty_like(x)
    for index in np.ndindex(x.shape):
        others = x.copy()
        others[index] = 1
        kept = tuple(slice(None) if d in dims else i for d, i in enumerate(index))
        found[index] = others[kept].prod()
    return found


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("dims", [0, 1, None])
@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_the_slope_of_a_product(world, dims, zeros):
    mesh = Mesh((2, 2), ("a", "b")) if world.size == 4 else Mesh((1, 1), ("a", "b"))
    x = np.random.default_rng(0).normal(size=(4, 6))
    x[1, :zeros] = 0
    where = tuple(range(2)) if dims is None else (dims,)
    for layout in (mesh("a", "b"), mesh(("a", "b"), None), mesh(None, "b"), mesh(None, None)):
        given = Tensor.from_global(x, layout, world, requires_grad=True)
        y = ops.prod(given, dims)
        np.testing.assert_allclose(y.full(), x.prod(axis=where), rtol=1e-12)
        nn.backward(ops.sum(y))
        np.testing.assert_allclose(given.grad.full(), slopes(x, where), rtol=1e-9, atol=1e-12)
