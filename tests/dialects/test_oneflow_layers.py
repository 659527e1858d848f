"""Arguments of OneFlow's layers and optimisers change the results."""

from __future__ import annotations

import numpy as np
import pytest

import spmdsim.dialects.oneflow as flow
from spmdsim.dialects.oneflow import nn
from spmdsim.dialects.oneflow.sbp import broadcast, split
from spmdsim.dialects.session import use_world
from spmdsim.errors import InputError

X = np.random.default_rng(5).normal(size=(4, 6))


def placement():
    return flow.placement("cpu", [0, 1])


def train_with_adam(value, steps, amsgrad, corrected, decoupled, rate=0.1, decay=0.01):
    """Return `value` after ``steps`` steps of Adam on the loss ``(x - 1) ** 4``, computed with numpy.

    The gradients shrink, so that the largest second moment is an old one, which `amsgrad` uses. `corrected` corrects the
    bias of moments; `decoupled` is the weight decay of AdamW.
    """
    first, second, largest = 0 * value, 0 * value, 0 * value
    for t in range(1, steps + 1):
        g = 4 * (value - 1) ** 3 + (0 if decoupled else decay * value)
        first, second = 0.9 * first + 0.1 * g, 0.9 * second + 0.1 * g * g
        largest = np.maximum(largest, second)
        first_correction, second_correction = (1 - 0.9**t, 1 - 0.9**t) if corrected else (1, 1)
        scale = np.sqrt((largest if amsgrad else second) / second_correction) + 1e-8
        value = value - rate * (first / first_correction / scale + (decay * value if decoupled else 0))
    return value


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", ["Adam", "AdamW"])
@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("corrected", [False, True])
def test_arguments_of_adam(world, name, amsgrad, corrected):
    with use_world(world):
        weight = nn.Parameter(flow.tensor(X, placement=placement(), sbp=split(0)))
        optimizer = getattr(flow.optim, name)(
            [weight],
            lr=0.1,
            betas=(0.9, 0.9),
            weight_decay=0.01,
            amsgrad=amsgrad,
            do_bias_correction=corrected,
        )
        for _ in range(8):
            ((weight - 1) ** 4).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        wanted = train_with_adam(X, 8, amsgrad, corrected, name == "AdamW")
        np.testing.assert_allclose(weight.numpy(), wanted, rtol=1e-9)
        if amsgrad:
            assert np.abs(wanted - train_with_adam(X, 8, False, corrected, name == "AdamW")).max() > 1e-3


@pytest.mark.ranks(2)
def test_layers_have_the_requested_type(world):
    with use_world(world):
        layer = nn.Linear(6, 3, dtype=flow.float64).to_global(placement(), broadcast)
        assert layer.weight.dtype == layer.bias.dtype == np.float64
        y = layer(flow.tensor(X, placement=placement(), sbp=split(0)))
        assert y.dtype == np.float64
        np.testing.assert_allclose(y.numpy(), X @ layer.weight.numpy().T + layer.bias.numpy(), rtol=1e-12)
        table = nn.Embedding(5, 2, dtype=flow.float64).to_global(placement(), split(0))
        assert table.weight.dtype == np.float64
        assert nn.Linear(6, 3).to_global(placement(), broadcast).weight.dtype == np.float32


@pytest.mark.ranks(2)
@pytest.mark.parametrize("sbp", [broadcast, split(0), split(1)], ids=str)
def test_layer_norm_without_parameters(world, sbp):
    with use_world(world):
        layer = nn.LayerNorm(6, eps=1e-3, elementwise_affine=False)
        assert [*layer.parameters()] == [] and layer.weight is layer.bias is None
        assert repr(layer) == "LayerNorm((6,), eps=0.001, elementwise_affine=False)"
        y = layer(flow.tensor(X, placement=placement(), sbp=sbp)).numpy()
        spread = np.sqrt(X.var(1, keepdims=True) + 1e-3)
        np.testing.assert_allclose(y, (X - X.mean(1, keepdims=True)) / spread, rtol=1e-9)


@pytest.mark.ranks(2)
def test_dropout_of_all_elements(world):
    with use_world(world):
        layer, x = nn.Dropout(1.0), flow.tensor(X, placement=placement(), sbp=split(0), requires_grad=True)
        y = layer(x)
        y.sum().backward()
        np.testing.assert_array_equal(y.numpy(), 0 * X)
        np.testing.assert_array_equal(x.grad.numpy(), 0 * X)
        np.testing.assert_array_equal(layer.eval()(x).numpy(), X)
        with pytest.raises(InputError, match=r"has to be between 0 and 1, but got 1\.5"):
            nn.Dropout(1.5)


@pytest.mark.ranks(2)
def test_parameters_have_the_symbols_of_tensors(world):
    """Parameters may be on either side of a symbol with tensors and numbers, and they get gradients."""
    with use_world(world):
        w = nn.Parameter(flow.tensor(X, placement=placement(), sbp=split(0)))
        y = flow.tensor(X + 3, placement=placement(), sbp=split(0))
        for result, wanted in (
            (w - 1, X - 1), (2 * w, 2 * X), (w * y, X * (X + 3)), (y / w, (X + 3) / X), (w**2, X**2), (-w, -X),
            (abs(w), np.abs(X)), (w > 0, X > 0), (w[1:], X[1:]), (w @ w.permute(1, 0), X @ X.T), (np.float64(2) * w, 2 * X),
            (y // w, (X + 3) // X), (w % 2, X % 2),
        ):  # fmt: skip
            np.testing.assert_allclose(result.numpy(), wanted, rtol=1e-9)
        (w * w).sum().backward()
        np.testing.assert_allclose(w.grad.numpy(), 2 * X, rtol=1e-12)
        assert w == w and len({w, w}) == 1 and w in [1, w]


@pytest.mark.ranks(2)
def test_symbols_with_assignment_change_the_tensor(world):
    """References see the new values; type and placement stay.

    Gradients continue through the earlier values.
    """
    with use_world(world):
        x = flow.tensor(X, placement=placement(), sbp=split(0))
        reference, other = x, x * 1
        x += flow.tensor(X[0], placement=placement(), sbp=broadcast)
        x *= 2
        np.testing.assert_allclose(reference.numpy(), (X + X[0]) * 2, rtol=1e-12)
        np.testing.assert_array_equal(other.numpy(), X)
        assert x.sbp == (split(0),) and x.dtype == np.float64
        local = flow.ones(3)
        local /= 2
        assert local.tolist() == [0.5] * 3
        leaf = flow.tensor(X, placement=placement(), sbp=split(0), requires_grad=True)
        y = leaf * 2
        y += leaf
        y *= y
        y.sum().backward()
        np.testing.assert_allclose(leaf.grad.numpy(), 18 * X, rtol=1e-12)
        with pytest.raises(
            RuntimeError, match="a leaf Tensor that requires grad is being used in an in-place operation"
        ):
            leaf += 1
        with pytest.raises(
            RuntimeError, match=r"must have the tensor's shape oneflow\.Size\(\[4, 6\]\), got"
        ):
            x += flow.ones(2, 4, 6, placement=placement(), sbp=broadcast)


@pytest.mark.ranks(2)
def test_a_step_in_place_changes_the_parameter(world):
    """``p -= rate * p.grad`` changes the module's parameter, which keeps its gradient until zero_grad()."""
    with use_world(world):
        layer = nn.Linear(6, 2, bias=False, dtype=flow.float64).to_global(placement(), split(0))
        x, wanted = flow.tensor(X, placement=placement(), sbp=broadcast), layer.weight.numpy()
        for _ in range(3):
            layer(x).pow(2).sum().backward()
            with flow.no_grad():
                for p in layer.parameters():
                    p -= 0.01 * p.grad
                    assert p.grad is not None and p.requires_grad and p.sbp == (split(0),)
            layer.zero_grad()
            wanted = wanted - 0.02 * (X @ wanted.T).T @ X
        np.testing.assert_allclose(layer.weight.numpy(), wanted, rtol=1e-9)
        with pytest.raises(RuntimeError, match="a leaf Tensor that requires grad"):
            layer.weight += 1


@pytest.mark.ranks(2)
@pytest.mark.parametrize("sbp", [broadcast, split(0)], ids=str)
def test_the_row_of_the_padding_is_zero(world, sbp):
    with use_world(world):
        table = nn.Embedding(6, 3, padding_idx=-2).to_global(placement(), sbp)
        plain = nn.Embedding(6, 3).to_global(placement(), sbp)
        assert (table.weight.numpy()[4] == 0).all() and (plain.weight.numpy()[4] != 0).all()
        assert (table.weight.numpy()[[0, 1, 2, 3, 5]] != 0).all()
        table(flow.tensor(np.array([4, 1]), placement=placement(), sbp=broadcast)).sum().backward()
        np.testing.assert_array_equal(table.weight.grad.numpy()[[4, 1]], [[0] * 3, [1] * 3])
