"""Values and gradients are numbers for rows of zeros, probabilities of 0 and 1, and rows of -inf, as in the systems."""

from __future__ import annotations

import numpy as np
import pytest

import spmdsim.dialects.oneflow as flow
import spmdsim.dialects.paddle as paddle
from spmdsim.dialects.oneflow.sbp import broadcast, split
from spmdsim.dialects.session import use_world

ROWS = np.array([[0, 0, 0], [3, 0, 4], [1, -2, 2]], "f4")
OTHER = np.array([[1, 2, 3], [0, 0, 0], [1, 1, 1]], "f4")
CHANCES = np.array([[0, 1, 0.5], [1, 0, 0.25]], "f4")
KNOWN = np.array([[0, 1, 1], [0, 1, 0]], "f4")
LOGS = np.array([[-np.inf, -np.inf], [-np.inf, 1], [0, 2]], "f4")

pytestmark = pytest.mark.filterwarnings("error")


def in_oneflow(sbp):
    """Return a function that makes tensors with this `sbp`, and OneFlow's two modules of functions."""
    placement = flow.placement("cpu", [0, 1])

    def tensor(array):
        return flow.tensor(array, placement=placement, sbp=sbp, requires_grad=True)

    return tensor, flow.nn.functional, flow


def in_paddle():
    """Return a function that makes tensors, and Paddle's two modules of functions."""
    return (lambda array: paddle.to_tensor(array, stop_gradient=False)), paddle.nn.functional, paddle


@pytest.fixture(params=["oneflow B", "oneflow S0", "oneflow S1", "paddle"])
def system(request):
    name, _, sbp = request.param.partition(" ")
    return lambda: (
        in_paddle() if name == "paddle" else in_oneflow({"B": broadcast}.get(sbp) or split(int(sbp[1])))
    )


def compute_gradients(tensor, function, array):
    """Return the values of `function(tensor(array))`, and the gradient of their sum."""
    x = tensor(array)
    y = function(x)
    y.sum().backward()
    return y.numpy(), x.grad.numpy()


def dim_argument(x, system, dim):
    """Return the argument for a dim: Paddle calls it axis."""
    return {"axis": dim} if system is paddle else {"dim": dim}


#: The squares of these numbers exceed the range of 16-bit floats, but their norms do not.
LARGE = np.array([[1, 2, 3, 4], [4, 3, 2, 1]], "f4") * 1000
HALF = {
    "layer_norm": (lambda f, top, x: f.layer_norm(x, 4), (LARGE - 2500) / LARGE.std(1, keepdims=True)),
    "norm": (lambda f, top, x: top.norm(x, 2, 1), np.linalg.norm(LARGE, axis=1)),
    "normalize": (lambda f, top, x: f.normalize(x), LARGE / np.linalg.norm(LARGE, axis=1, keepdims=True)),
    "cosine_similarity": (lambda f, top, x: f.cosine_similarity(x, x), np.ones(2)),
}


@pytest.mark.ranks(2)
@pytest.mark.parametrize("case", HALF)
def test_floats_of_16_bits_are_rounded_once(world, system, case):
    call, wanted = HALF[case]
    with use_world(world):
        tensor, functional, functions = system()
        y = call(functional, functions, tensor(LARGE.astype("f2")))
        assert y.numpy().dtype == np.float16
        np.testing.assert_allclose(y.numpy(), wanted, rtol=2e-3)


def norm_gradient(p):
    """Return the `p`-norms of `ROWS` and their gradients, with 0 for zeros."""
    size = np.abs(ROWS.astype("f8"))
    norms = (size**p).sum(1, keepdims=True) ** (1 / p)
    with np.errstate(all="ignore"):
        slope = np.sign(ROWS) * size ** (p - 1) * norms ** (1 - p)
    return norms[:, 0], np.where((size == 0) | (norms == 0), 0, slope)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("p", [0.5, 1, 1.5, 2, 3])
def test_norms_have_numbers_as_gradients(world, system, p):
    with use_world(world):
        tensor, _, functions = system()
        values, gradient = compute_gradients(
            tensor, lambda x: functions.norm(x, p=p, **dim_argument(x, functions, 1)), ROWS
        )
        norms, wanted = norm_gradient(p)
        np.testing.assert_allclose(values, norms, rtol=1e-5)
        np.testing.assert_allclose(gradient, wanted, rtol=1e-5, atol=1e-7)
        _, gradient = compute_gradients(tensor, functions.norm, 0 * ROWS)
        np.testing.assert_array_equal(gradient, 0 * ROWS)


@pytest.mark.ranks(2)
def test_zero_rows_are_divided_by_epsilon(world, system):
    """A row of zeros and its gradient are divided by epsilon."""
    with use_world(world):
        tensor, functions, module = system()
        values, gradient = compute_gradients(
            tensor, lambda x: functions.normalize(x, **dim_argument(x, module, 1)), ROWS
        )
        x = ROWS[1:].astype("f8")
        norms = np.linalg.norm(x, axis=1, keepdims=True)
        np.testing.assert_allclose(values, np.vstack([np.zeros((1, 3)), x / norms]), rtol=1e-5)
        np.testing.assert_allclose(gradient[0], 1e12, rtol=1e-5)
        np.testing.assert_allclose(
            gradient[1:], 1 / norms - x * x.sum(1, keepdims=True) / norms**3, rtol=1e-4
        )
        other = tensor(OTHER)
        values, gradient = compute_gradients(
            tensor, lambda x: functions.cosine_similarity(x, other, **dim_argument(x, module, 1)), ROWS
        )
        np.testing.assert_allclose(values, [0, 0, 1 / (3 * np.sqrt(3))], rtol=1e-5)
        np.testing.assert_allclose(gradient[0], OTHER[0] / np.sqrt(14) / 1e-8, rtol=1e-4)
        assert np.isfinite(gradient).all() and np.isfinite(other.grad.numpy()).all()
        np.testing.assert_array_equal(gradient[1], 0)


@pytest.mark.ranks(2)
def test_probabilities_of_0_and_1_have_finite_losses(world, system):
    """Logarithms are at least -100, and divisors of gradients are at least 1e-12."""
    x, t = CHANCES.astype("f8"), KNOWN.astype("f8")
    with np.errstate(divide="ignore"):
        log_x, log_complement = np.maximum(np.log(x), -100), np.maximum(np.log(1 - x), -100)
    with use_world(world):
        tensor, functions, _ = system()
        target = tensor(KNOWN)
        values, gradient = compute_gradients(
            tensor, lambda x: functions.binary_cross_entropy(x, target, reduction="none"), CHANCES
        )
        np.testing.assert_allclose(values, -t * log_x - (1 - t) * log_complement, rtol=1e-5)
        np.testing.assert_allclose(gradient, (x - t) / np.maximum(x * (1 - x), 1e-12), rtol=1e-5)
        np.testing.assert_allclose(target.grad.numpy(), log_complement - log_x, rtol=1e-5)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("dim", [0, 1])
def test_logsumexp_of_minus_infinity_has_no_gradient(world, system, dim):
    """The result of elements that are all -inf is -inf, and their gradients are 0."""
    total = np.exp(LOGS.astype("f8")).sum(dim, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        wanted, share = np.log(total), np.where(total == 0, 0, np.exp(LOGS) / total)
    with use_world(world):
        tensor, _, functions = system()
        for keepdim in (True, False):
            values, gradient = compute_gradients(
                tensor, lambda x, k=keepdim: functions.logsumexp(x, dim, k), LOGS
            )
            np.testing.assert_allclose(values, wanted if keepdim else wanted.squeeze(dim), rtol=1e-5)
            np.testing.assert_allclose(gradient, share, rtol=1e-5)


@pytest.mark.ranks(2)
def test_a_smooth_l1_loss_with_beta_0_is_the_l1_loss(world):
    with use_world(world):
        tensor, functions, _ = in_oneflow(split(0))
        target = tensor(OTHER)
        values, gradient = compute_gradients(
            tensor, lambda x: functions.smooth_l1_loss(x, target, reduction="none", beta=0.0), ROWS
        )
        np.testing.assert_array_equal(values, np.abs(ROWS - OTHER))
        np.testing.assert_array_equal(gradient, np.sign(ROWS - OTHER))
