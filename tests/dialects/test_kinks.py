"""Gradients where elements are tied or stand at a limit: each system has its own, none of which is wrong."""

from __future__ import annotations

import numpy as np
import pytest

import spmdsim.dialects.mindspore.mint as mint
import spmdsim.dialects.oneflow as flow
import spmdsim.dialects.paddle as paddle
from spmdsim.dialects.oneflow.sbp import broadcast, split
from spmdsim.dialects.session import use_world

X = np.array([[1.0, 3.0, 3.0, -2.0], [2.0, 2.0, 2.0, 2.0]], "f4")
Y = np.array([[1.0, 2.0, 4.0, -3.0], [2.0, 1.0, 2.0, 5.0]], "f4")
AXES = [None, 0, 1, (0, 1)]


def tied(name, axis):
    """Which elements attain the extreme."""
    return getattr(np, name)(X, axis, keepdims=True) == X


def spread(name, axis):
    """The gradient in equal parts."""
    mask = tied(name, axis)
    return mask / mask.sum(axis, keepdims=True)


def alone(name, axis):
    """The gradient at the first of them."""
    first = np.expand_dims(getattr(np, f"arg{name}")(X, axis), axis)
    return first == np.arange(X.shape[axis]).reshape((-1, 1) if axis == 0 else (1, -1))


def of_paddle(function, *arrays):
    """Gradients of the sum of what a function gives."""
    tensors = [paddle.to_tensor(array, stop_gradient=False) for array in arrays]
    function(*tensors).sum().backward()
    return [tensor.grad.numpy() for tensor in tensors]


def of_oneflow(function, sbp, *arrays):
    """The same."""
    where = flow.placement("cpu", [0, 1])
    tensors = [flow.tensor(array, placement=where, sbp=sbp, requires_grad=True) for array in arrays]
    function(*tensors).sum().backward()
    return [tensor.grad.numpy() for tensor in tensors]


@pytest.mark.ranks(2)
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("name", ["max", "min"])
def test_extremes_of_paddle(world, name, axis):
    """``max`` gives each of them all of it, ``amax`` parts."""
    with use_world(world):
        for keepdim in (False, True):
            whole = of_paddle(lambda x, k=keepdim: getattr(paddle, name)(x, axis=axis, keepdim=k), X)[0]
            parts = of_paddle(lambda x, k=keepdim: getattr(paddle, f"a{name}")(x, axis, k), X)[0]
            np.testing.assert_array_equal(whole, tied(name, axis))
            np.testing.assert_allclose(parts, spread(name, axis), rtol=1e-6)
        values = getattr(paddle, name)(paddle.to_tensor(X, stop_gradient=False), axis).numpy()
        np.testing.assert_array_equal(values, getattr(np, name)(X, axis))


@pytest.mark.ranks(2)
def test_two_operands_of_paddle(world):
    """The second one has the gradient, also where it is broadcast."""
    with use_world(world):
        for name, first in (("maximum", X > Y), ("minimum", X < Y)):
            a, b = of_paddle(lambda x, y, name=name: getattr(paddle, name)(x, y=y), X, Y)
            np.testing.assert_array_equal(a, first)
            np.testing.assert_array_equal(b, ~first)
            row = of_paddle(lambda x, y, name=name: getattr(paddle, name)(x=x, y=y), X, Y[0])[1]
            np.testing.assert_array_equal(row, (Y[:1] >= X if name == "maximum" else Y[:1] <= X).sum(0))


@pytest.mark.ranks(2)
@pytest.mark.parametrize("limits", [(1, 3), (None, 2.0), (2.0, None), (-2.0, 2), (None, None)])
def test_limits_of_paddle(world, limits):
    """No gradient at a limit."""
    low, high = (-np.inf if limits[0] is None else limits[0]), (np.inf if limits[1] is None else limits[1])
    inside = (low < X) & (high > X)
    with use_world(world):
        gradient = of_paddle(lambda x: paddle.clip(x=x, min=limits[0], max=limits[1]), X)[0]
        np.testing.assert_array_equal(gradient, inside)
        values = paddle.clip(paddle.to_tensor(X, stop_gradient=False), *limits).numpy()
        np.testing.assert_array_equal(values, np.minimum(np.maximum(X, low), high))
        if None not in limits:
            gradient = of_paddle(lambda x: paddle.nn.functional.hardtanh(x, *limits), X)[0]
            np.testing.assert_array_equal(gradient, inside)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("sbp", [broadcast, split(0), split(1)], ids=str)
def test_oneflow(world, sbp):
    """Equal parts of all extremes, halves of two operands; a gradient at a limit of ``clamp``, none at ``hardtanh``'s."""
    with use_world(world):
        for name in ("max", "min"):
            for axis in (0, 1):
                gradient = of_oneflow(lambda x, n=name, d=axis: getattr(flow, n)(x, dim=d).values, sbp, X)[0]
                np.testing.assert_allclose(gradient, spread(name, axis), rtol=1e-6)
            gradient = of_oneflow(lambda x, n=name: getattr(x, n)(), sbp, X)[0]
            np.testing.assert_allclose(gradient, spread(name, None), rtol=1e-6)
        a, b = of_oneflow(flow.maximum, sbp, X, Y)
        np.testing.assert_array_equal(a, (X > Y) + (X == Y) / 2)
        np.testing.assert_array_equal(b, (X < Y) + (X == Y) / 2)
        np.testing.assert_array_equal(
            of_oneflow(lambda x: flow.clamp(x, 1, 3), sbp, X)[0], (X >= 1) & (X <= 3)
        )
        hard = of_oneflow(lambda x: flow.nn.functional.hardtanh(x, 1.0, 3.0), sbp, X)[0]
        np.testing.assert_array_equal(hard, (X > 1) & (X < 3))


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", ["max", "min"])
def test_mint_has_torch_s(world, name):
    """Along a dim the element with the index has it, of all elements each its part."""
    import spmdsim.dialects.mindspore as mindspore

    with use_world(world):
        for axis in (0, 1):

            def total(x, axis=axis):
                return getattr(mint, name)(x, axis)[0].sum()

            gradient = mindspore.grad(total)(mindspore.Tensor(X))
            np.testing.assert_array_equal(gradient.asnumpy(), alone(name, axis))
        gradient = mindspore.grad(lambda x: getattr(mint, name)(x))(mindspore.Tensor(X))
        np.testing.assert_allclose(gradient.asnumpy(), spread(name, None), rtol=1e-6)
