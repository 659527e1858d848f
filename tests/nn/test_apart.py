"""Every layer, every optimiser in float64, and clipping beside arithmetic that shares no code: numpy by hand, and torch."""

from __future__ import annotations

import inspect
import math

import numpy as np
import pytest

import spmdsim.ops as ops
from spmdsim import LockStep, Mesh, Tensor, nn
from tests.nn import test_optimiser_state

MESH = Mesh((2, 2), ("dp", "tp"))
STREAM = MESH("dp", None, None)
F8 = np.dtype("f8")


def _norm(x, w, name):
    centred = x - x.mean(-1, keepdims=True)
    return (
        centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * w[f"{name}scale"] + w[f"{name}shift"]
    )


def _affine(x, w, name):
    return np.einsum("...k,kn->...n", x, w[f"{name}weight"]) + w.get(f"{name}bias", 0)


def _gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _mlp(x, w, name=""):
    return _affine(_gelu(_affine(x, w, f"{name}up.")), w, f"{name}down.")


def _attention(x, w, name="", heads=2):
    """One head and one position at a time."""
    q, k, v = (_affine(x, w, f"{name}{part}.") for part in "qkv")
    width, mixed = x.shape[-1] // heads, np.zeros_like(x)
    for b, h, t in np.ndindex(x.shape[0], heads, x.shape[1]):
        part = slice(h * width, (h + 1) * width)
        seen = np.array([q[b, t, part] @ k[b, s, part] / math.sqrt(width) for s in range(t + 1)])
        weights = np.exp(seen - seen.max())
        mixed[b, t, part] = (weights / weights.sum()) @ v[b, : t + 1, part]
    return _affine(mixed, w, f"{name}out.")


def _block(x, w, name=""):
    x = x + _attention(_norm(x, w, f"{name}norm1."), w, f"{name}attention.")
    return x + _mlp(_norm(x, w, f"{name}norm2."), w, f"{name}mlp.")


def _gpt(ids, w):
    x = w["tokens.table"][ids] + w["positions"][: ids.shape[1]]
    for k in range(2):
        x = _block(x, w, f"blocks.{k}.")
    return _affine(_norm(x, w, "norm."), w, "head.")


def _embedded(ids, w):
    return np.where((ids == 3)[..., None], 0, w["table"][ids])


X = np.random.default_rng(0).normal(size=(2, 3, 4))
IDS = np.random.default_rng(1).integers(0, 6, size=(2, 3))
IDS[0, 1] = 3

LAYERS = {
    "Linear": (lambda: nn.Linear(4, 6, MESH("tp", None), dtype=F8), X, lambda x, w: _affine(x, w, "")),
    "Embedding": (lambda: nn.Embedding(6, 4, MESH("tp", None), padding=3, dtype=F8), IDS, _embedded),
    "LayerNorm": (lambda: nn.LayerNorm(4, MESH(None), dtype=F8), X, lambda x, w: _norm(x, w, "")),
    "Sequential": (
        lambda: nn.Sequential(nn.Linear(4, 4, MESH(None, "tp"), dtype=F8), ops.tanh), X,
        lambda x, w: np.tanh(_affine(x, w, "steps.0.")),
    ),
    "MLP": (lambda: nn.MLP(4, 8, STREAM, "tp", dtype=F8), X, _mlp),
    "Attention": (lambda: nn.Attention(4, 2, STREAM, "tp", dtype=F8), X, _attention),
    "TransformerBlock": (lambda: nn.TransformerBlock(4, 2, 8, STREAM, "tp", dtype=F8), X, _block),
    "GPT": (lambda: nn.GPT(6, 4, 2, 2, 5, STREAM, "tp", dtype=F8), IDS, _gpt),
}  # fmt: skip


def _public(base):
    return {n for n in nn.__all__ if inspect.isclass(getattr(nn, n)) and issubclass(getattr(nn, n), base)}


def test_every_public_layer_and_optimiser_is_here():
    assert set(LAYERS) == _public(nn.Module) - {"Module", "ModuleList"}
    by_hand = {kind.__name__ for kind, _ in test_optimiser_state.OPTIMISERS.values()}
    assert by_hand == {kind.__name__ for kind, _ in OPTIMISERS} == _public(nn.Optimiser) - {"Optimiser"}


@pytest.mark.ranks(4)
@pytest.mark.parametrize("name", LAYERS)
def test_layers_by_hand(name, world):
    """Values, and the gradient of every parameter along a random direction."""
    make, x, reference = LAYERS[name]
    layer, rng = make().materialise(world, seed=2), np.random.default_rng(5)
    for parameter in layer.parameters():  # ones and zeros would hide a scale that is not used
        value = Tensor.from_global(
            rng.normal(size=parameter.shape), parameter.layout, world, requires_grad=True
        )
        parameter.assign(value)
    weights = {key: p.value.full().copy() for key, p in layer.named_parameters()}
    given = Tensor.from_global(x, MESH("dp", *[None] * (x.ndim - 1)), world)
    y = layer(given)
    expected = reference(x, weights)
    np.testing.assert_allclose(y.full(), expected, rtol=1e-11, atol=1e-11)
    dy = rng.normal(size=expected.shape)
    nn.backward(ops.sum(ops.multiply(y, Tensor.from_global(dy, MESH(*[None] * dy.ndim), world))))
    for key, parameter in layer.named_parameters():
        along = rng.normal(size=parameter.shape)
        ends = [
            float((dy * reference(x, weights | {key: weights[key] + step * along})).sum())
            for step in (1e-6, -1e-6)
        ]
        slope = (ends[0] - ends[1]) / 2e-6
        assert float((parameter.grad.full() * along).sum()) == pytest.approx(slope, rel=1e-6, abs=1e-5), key


OPTIMISERS = [
    (nn.SGD, {}),
    (nn.SGD, {"momentum": 0.9, "weight_decay": 0.02, "dampening": 0.25}),
    (nn.SGD, {"momentum": 0.8, "weight_decay": 0.01, "nesterov": True}),
    (nn.Adam, {}),
    (nn.Adam, {"betas": (0.7, 0.95), "epsilon": 1e-3, "weight_decay": 0.05}),
]


def _steps(make, options, world):
    """Four steps of one parameter on given slopes: the values after each."""
    layer = nn.Linear(6, 4, MESH(None, "tp"), bias=False, dtype=F8).materialise(world, seed=4)
    optimiser = make(layer.parameters(), 0.1, **options)
    values = [layer.weight.value.full().copy()]
    for step in range(4):
        slope = np.random.default_rng(step).normal(size=(6, 4))
        layer.weight.value.grad = Tensor.from_global(slope, layer.weight.layout, world)
        optimiser.step()
        values.append(layer.weight.value.full().copy())
    return values


@pytest.mark.parametrize("make, options", OPTIMISERS)
def test_optimisers_beside_torch(make, options):
    torch = pytest.importorskip("torch")
    first, *values = _steps(make, options, LockStep(4))
    w = torch.tensor(first, requires_grad=True)
    if make is nn.SGD:
        optimiser = torch.optim.SGD([w], 0.1, **options)
    else:
        names = {"epsilon": "eps"}
        optimiser = torch.optim.AdamW(
            [w], 0.1, **{"weight_decay": 0.0} | {names.get(k, k): v for k, v in options.items()}
        )
    for step, value in enumerate(values):
        w.grad = torch.tensor(np.random.default_rng(step).normal(size=(6, 4)))
        optimiser.step()
        np.testing.assert_allclose(value, w.detach().numpy(), rtol=1e-11, atol=1e-13)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("largest", [0.5, 3.0, 100.0])
def test_clipping_by_hand(largest, world):
    """Gradients of a known norm, 13: scaled to the largest norm, or left as they are."""
    layer = nn.Linear(2, 2, MESH(None, "tp"), dtype=F8).materialise(world)
    slopes = {"weight": np.array([[3.0, 0.0], [4.0, 0.0]]), "bias": np.array([0.0, 12.0])}
    for name, parameter in layer.named_parameters():
        parameter.value.grad = Tensor.from_global(slopes[name], parameter.layout, world)
    assert nn.clip(layer.parameters(), largest) == pytest.approx(13, rel=1e-12)
    for name, parameter in layer.named_parameters():
        expected = slopes[name] * min(1.0, largest / 13)
        np.testing.assert_allclose(parameter.grad.full(), expected, rtol=1e-6)
    assert nn.global_norm(layer.parameters()) == pytest.approx(min(13.0, largest), rel=1e-6)
