"""Gradients of tied elements and at limits follow the imitated system; systems differ, and no choice is wrong."""

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


def is_extreme(name, axis):
    """Return a mask of the elements of `X` that equal the extreme along the axis."""
    return getattr(np, name)(X, axis, keepdims=True) == X


def equal_gradient(name, axis):
    """Return the gradient if it is divided equally between all extremes."""
    mask = is_extreme(name, axis)
    return mask / mask.sum(axis, keepdims=True)


def first_gradient(name, axis):
    """Return the gradient if only the first extreme has one."""
    first = np.expand_dims(getattr(np, f"arg{name}")(X, axis), axis)
    return first == np.arange(X.shape[axis]).reshape((-1, 1) if axis == 0 else (1, -1))


def paddle_gradients(function, *arrays):
    """Return Paddle's gradients of the sum of `function(*arrays)`."""
    tensors = [paddle.to_tensor(array, stop_gradient=False) for array in arrays]
    function(*tensors).sum().backward()
    return [tensor.grad.numpy() for tensor in tensors]


def oneflow_gradients(function, sbp, *arrays):
    """Return OneFlow's gradients of the sum of `function(*arrays)`, for tensors with this `sbp`."""
    placement = flow.placement("cpu", [0, 1])
    tensors = [flow.tensor(array, placement=placement, sbp=sbp, requires_grad=True) for array in arrays]
    function(*tensors).sum().backward()
    return [tensor.grad.numpy() for tensor in tensors]


@pytest.mark.ranks(2)
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("name", ["max", "min"])
def test_extremes_of_paddle(world, name, axis):
    """The gradient of ``max`` is 1 for each extreme, and ``amax`` divides it between the extremes."""
    with use_world(world):
        for keepdim in (False, True):
            of_max = paddle_gradients(lambda x, k=keepdim: getattr(paddle, name)(x, axis=axis, keepdim=k), X)[
                0
            ]
            of_amax = paddle_gradients(lambda x, k=keepdim: getattr(paddle, f"a{name}")(x, axis, k), X)[0]
            np.testing.assert_array_equal(of_max, is_extreme(name, axis))
            np.testing.assert_allclose(of_amax, equal_gradient(name, axis), rtol=1e-6)
        values = getattr(paddle, name)(paddle.to_tensor(X, stop_gradient=False), axis).numpy()
        np.testing.assert_array_equal(values, getattr(np, name)(X, axis))


@pytest.mark.ranks(2)
def test_two_operands_of_paddle(world):
    """The second operand has the gradient of equal elements, also if it is broadcast."""
    with use_world(world):
        for name, first in (("maximum", X > Y), ("minimum", X < Y)):
            a, b = paddle_gradients(lambda x, y, name=name: getattr(paddle, name)(x, y=y), X, Y)
            np.testing.assert_array_equal(a, first)
            np.testing.assert_array_equal(b, ~first)
            row = paddle_gradients(lambda x, y, name=name: getattr(paddle, name)(x=x, y=y), X, Y[0])[1]
            np.testing.assert_array_equal(row, (Y[:1] >= X if name == "maximum" else Y[:1] <= X).sum(0))


@pytest.mark.ranks(2)
@pytest.mark.parametrize("limits", [(1, 3), (None, 2.0), (2.0, None), (-2.0, 2), (None, None)])
def test_limits_of_paddle(world, limits):
    """Elements at a limit of ``clip`` and ``hardtanh`` have no gradient."""
    low, high = (-np.inf if limits[0] is None else limits[0]), (np.inf if limits[1] is None else limits[1])
    inside = (low < X) & (high > X)
    with use_world(world):
        gradient = paddle_gradients(lambda x: paddle.clip(x=x, min=limits[0], max=limits[1]), X)[0]
        np.testing.assert_array_equal(gradient, inside)
        values = paddle.clip(paddle.to_tensor(X, stop_gradient=False), *limits).numpy()
        np.testing.assert_array_equal(values, np.minimum(np.maximum(X, low), high))
        if None not in limits:
            gradient = paddle_gradients(lambda x: paddle.nn.functional.hardtanh(x, *limits), X)[0]
            np.testing.assert_array_equal(gradient, inside)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("sbp", [broadcast, split(0), split(1)], ids=str)
def test_gradients_of_oneflow(world, sbp):
    """Extremes and equal operands divide the gradient equally.

    Elements at a limit have a gradient in ``clamp`` and none in ``hardtanh``.
    """
    with use_world(world):
        for name in ("max", "min"):
            for axis in (0, 1):
                gradient = oneflow_gradients(
                    lambda x, n=name, d=axis: getattr(flow, n)(x, dim=d).values, sbp, X
                )[0]
                np.testing.assert_allclose(gradient, equal_gradient(name, axis), rtol=1e-6)
            gradient = oneflow_gradients(lambda x, n=name: getattr(x, n)(), sbp, X)[0]
            np.testing.assert_allclose(gradient, equal_gradient(name, None), rtol=1e-6)
        a, b = oneflow_gradients(flow.maximum, sbp, X, Y)
        np.testing.assert_array_equal(a, (X > Y) + (X == Y) / 2)
        np.testing.assert_array_equal(b, (X < Y) + (X == Y) / 2)
        np.testing.assert_array_equal(
            oneflow_gradients(lambda x: flow.clamp(x, 1, 3), sbp, X)[0], (X >= 1) & (X <= 3)
        )
        hard = oneflow_gradients(lambda x: flow.nn.functional.hardtanh(x, 1.0, 3.0), sbp, X)[0]
        np.testing.assert_array_equal(hard, (X > 1) & (X < 3))


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", ["max", "min"])
def test_mint_has_the_gradients_of_torch(world, name):
    """Along a dim, the element at the index has the gradient; over all dims, extremes divide it equally."""
    import spmdsim.dialects.mindspore as mindspore

    with use_world(world):
        for axis in (0, 1):

            def total(x, axis=axis):
                return getattr(mint, name)(x, axis)[0].sum()

            gradient = mindspore.grad(total)(mindspore.Tensor(X))
            np.testing.assert_array_equal(gradient.asnumpy(), first_gradient(name, axis))
        gradient = mindspore.grad(lambda x: getattr(mint, name)(x))(mindspore.Tensor(X))
        np.testing.assert_allclose(gradient.asnumpy(), equal_gradient(name, None), rtol=1e-6)
