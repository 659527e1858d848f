"""Remainders, divisions by zero, optimisers and functions give the numbers in MindSpore's documentation."""

from __future__ import annotations

import numpy as np
import pytest

import spmdsim.dialects.mindspore as ms
from spmdsim.dialects.mindspore import nn, ops
from spmdsim.dialects.session import use_world
from spmdsim.errors import WorldError

X = np.array([-4.0, 5.0, 6.0, -7.5, 0.0, 3.0, -3.0, 8.0], np.float32)
Y = np.array([3.0, 2.0, 3.0, -2.0, 5.0, -2.0, 3.0, 0.5], np.float32)
Z = np.array([3.0, 0.0, 3.0, -2.0, 0.0, -2.0, 0.0, 0.5], np.float32)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("cuts", [None, ((4,), (4,)), ((2,), (2,))])
def test_a_mod_has_the_sign_of_the_dividend(world, cuts):
    """``ops.Mod`` truncates the quotient, and ``ops.FloorMod`` rounds it down."""
    with use_world(world):
        numbers = X.astype(np.int32), np.array([3, 2, 4, -2, 5, -2, 3, 1], np.int32)
        for x, y in ((X, Y), numbers):
            result = ops.Mod().shard(cuts)(x, y)
            assert result.dtype == x.dtype
            np.testing.assert_array_equal(result.full(), np.fmod(x, y))
            np.testing.assert_array_equal(ops.FloorMod().shard(cuts)(x, y).full(), np.mod(x, y))


@pytest.mark.ranks(4)
@pytest.mark.parametrize("cuts", [None, ((4,), (4,)), ((2,), (2,))])
def test_div_no_nan_gives_zero_for_division_by_zero(world, cuts):
    """Quotients and gradients of ``ops.DivNoNan`` are 0 if the divisor is 0."""
    with use_world(world):
        divide, is_defined = ops.DivNoNan().shard(cuts), Z != 0
        divisor = np.where(is_defined, Z, 1)
        result = divide(np.append(X[:-1], np.float32(np.inf)), np.append(Z[:-1], np.float32(0)))
        np.testing.assert_array_equal(result.full(), np.append(np.where(is_defined, X / divisor, 0)[:-1], 0))
        gradients = ms.grad(lambda x, y: ops.ReduceSum()(divide(x, y)), (0, 1))(ms.Tensor(X), ms.Tensor(Z))
        for gradient, wanted in zip(gradients, (1 / divisor, -X / divisor**2)):
            np.testing.assert_allclose(gradient.full(), np.where(is_defined, wanted, 0), rtol=1e-6)


@pytest.mark.ranks(4)
def test_adam_adds_epsilon_before_it_corrects_the_second_moment(world):
    """A step is ``l * m / (sqrt(v) + eps)`` with ``l = rate * sqrt(1 - beta2^t) / (1 - beta1^t)``.

    The order of both operations changes small gradients most.
    """
    with use_world(world):
        w = ms.Parameter(X, name="w")
        step = ms.value_and_grad(lambda: ops.ReduceSum()(ops.Mul()(w, np.float32(1e-7))), None, [w])
        optimizer, value, first, second = nn.Adam([w], 0.1, eps=1e-8), X.astype(np.float64), 0.0, 0.0
        for t in range(1, 4):
            optimizer(step()[1])
            first, second = 0.9 * first + 0.1 * 1e-7, 0.999 * second + 0.001 * 1e-14
            rate = 0.1 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
            value = value - rate * first / (np.sqrt(second) + 1e-8)
            np.testing.assert_allclose(w.asnumpy(), value, rtol=1e-5, atol=1e-6)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("given_later", [False, True])
def test_parameters_of_arrays_that_differ_between_ranks_are_refused(world, given_later):
    with use_world(world):
        array = np.full((4, 4), float(world.ranks[0]), np.float32)
        parameter = ms.Parameter(np.zeros((4, 4), np.float32) if given_later else array)
        if given_later:
            parameter.set_data(array)
        if len(world.ranks) == world.size:
            assert parameter.asnumpy().tolist() == array.tolist()
            return
        with pytest.raises(WorldError, match=r"rank 0 .*array with checksum.* rank 1 .*array with checksum"):
            ops.MatMul()(np.ones((4, 4), np.float32), parameter)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("kind", [nn.SGD, nn.Adam])
def test_parameters_named_beta_or_gamma_have_no_weight_decay(world, kind):
    with use_world(world):
        parameters = [ms.Parameter(X, name=name) for name in ("norm.gamma", "norm.beta", "weight")]
        optimizer = kind(parameters, 0.5, weight_decay=0.5)
        optimizer([ms.ops.ZerosLike()(parameter) for parameter in parameters])
        gamma, beta, weight = (parameter.asnumpy() for parameter in parameters)
        np.testing.assert_array_equal([gamma, beta], [X, X])
        assert (weight[X != 0] != X[X != 0]).all() and optimizer.weight_decay == 0.5


@pytest.mark.ranks(2)
def test_functions_have_the_results_and_arguments_of_their_documents(world):
    """Results follow the pages of ``mindspore.ops`` if NumPy or PyTorch differ."""
    matrix = np.array([[1, 2], [-4, -5], [2, 1]], np.float32)
    with use_world(world):
        s, u, v = (x.full() for x in ops.svd(matrix))
        np.testing.assert_allclose(s, [7.0652843, 1.040081], rtol=1e-5)
        np.testing.assert_allclose(u * s @ v.T, matrix, atol=1e-5)
        np.testing.assert_allclose(ops.svd(matrix, compute_uv=False).full(), s, rtol=1e-6)
        left, right = np.array([[1, 2, 3]] * 3), np.array([[4, 5, 6]] * 3)
        assert ops.cross(left, right).full().tolist() == np.zeros((3, 3)).tolist()
        assert ops.cross(left, right, dim=1).full().tolist() == [[-3, 6, -3]] * 3
        counted = ops.count_nonzero(left - 2, axis=0, keep_dims=True)
        assert counted.dtype == np.int32 and counted.full().tolist() == [[3, 0, 3]]
        assert ops.count_nonzero(left - 2).item() == 6
        x, target = X.reshape(2, 4), (Y.reshape(2, 4) > 0).astype(np.float32)
        positive = np.array([1.0, 2.0, 3.0, 4.0], np.float32)
        loss = ops.binary_cross_entropy_with_logits(x, target, np.ones((2, 4), np.float32), positive, "sum")
        logs = np.log1p(np.exp(-np.abs(x))) + np.maximum(-x, 0)
        np.testing.assert_allclose(
            loss.item(), ((1 - target) * (x + logs) + positive * target * logs).sum(), rtol=1e-5
        )
        assert ops.argmax(x, 1, True).shape == (2, 1)
        assert [block.shape for block in ops.split(x, [1, 3], 1)] == [(2, 1), (2, 3)]
        normal = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        np.testing.assert_allclose(ops.layer_norm(x, (4,)).full(), normal, rtol=1e-5)


@pytest.mark.ranks(2)
def test_adam_may_divide_by_the_largest_second_moment(world):
    with use_world(world):
        w, value, first, second, largest = ms.Parameter(X, name="w"), X.astype(np.float64), 0.0, 0.0, 0.0
        optimizer = nn.Adam([w], 0.1, beta2=0.5, use_amsgrad=True)
        for t, slope in enumerate((2.0, 0.01, 0.01), 1):
            optimizer([ops.Mul()(ops.OnesLike()(w), np.float32(slope))])
            first, second = 0.9 * first + 0.1 * slope, 0.5 * second + 0.5 * slope**2
            largest = max(largest, second)
            value = value - 0.1 * np.sqrt(1 - 0.5**t) / (1 - 0.9**t) * first / (np.sqrt(largest) + 1e-8)
        np.testing.assert_allclose(w.asnumpy(), value, rtol=1e-5, atol=1e-6)
