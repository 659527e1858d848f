"""Layers in float64, and clipping, equal arithmetic by hand that shares no code with the package."""

from __future__ import annotations

import inspect
import itertools
import math
import re
import zlib
from functools import partial

import numpy as np
import pytest

import spmdsim.ops as ops
from spmdsim import LockStep, Mesh, Tensor, nn, record
from spmdsim.arrays import random
from spmdsim.errors import InputError, LayoutError, UsageTypeError, WorldError
from spmdsim.worlds.provenance import Provenance
from spmdsim.worlds.trace.recorder import programs
from tests.nn import test_optimiser_state

MESH = Mesh((2, 2), ("dp", "tp"))
STREAM = MESH("dp", None, None)
F8 = np.dtype("f8")


def _norm(x, w, name, epsilon=1e-5):
    centred = x - x.mean(-1, keepdims=True)
    unit = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
    return unit * w[f"{name}scale"] + w[f"{name}shift"]


def _affine(x, w, name):
    return np.einsum("...k,kn->...n", x, w[f"{name}weight"]) + w.get(f"{name}bias", 0)


def _gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _mlp(x, w, name="", function=_gelu):
    return _affine(function(_affine(x, w, f"{name}up.")), w, f"{name}down.")


def _rotated(vector, position, base, interleaved):
    """Return one head's vector at a position, with each pair of numbers turned by the pair's angle.

    A pair is taken as a complex number. Pairs are neighbours if `interleaved`, else an element of the first
    half and its counterpart in the second. Angles are ``position / base ** (2 i / len(vector))``.
    """
    half, result = len(vector) // 2, np.empty_like(vector)
    for i in range(half):
        pair = [2 * i, 2 * i + 1] if interleaved else [i, i + half]
        turned = complex(*vector[pair]) * np.exp(1j * position / base ** (2 * i / len(vector)))
        result[pair] = turned.real, turned.imag
    return result


def _rotary(x, base=10_000.0, interleaved=False, start=0):
    result = np.empty_like(x)
    for b, t, h in np.ndindex(x.shape[:3]):
        result[b, t, h] = _rotated(x[b, t, h], start + t, base, interleaved)
    return result


def _attention(x, w, name="", heads=2, causal=True, kv_heads=None, rotate=None):
    """Return the attention of ``x`` with the weights ``w``, one head and one position at a time.

    `name` is the prefix of the weights' names. `causal` hides later positions. `rotate` turns a vector by its
    position. With `kv_heads` heads of keys, each of them serves ``heads // kv_heads`` neighbouring heads of
    queries.
    """
    q, k, v = (_affine(x, w, f"{name}{projection}.") for projection in "qkv")
    width, mixed, share = x.shape[-1] // heads, np.zeros_like(x), heads // (kv_heads or heads)
    turned = rotate or (lambda vector, position: vector)
    for b, h, t in np.ndindex(x.shape[0], heads, x.shape[1]):
        columns, keys = (slice(g * width, (g + 1) * width) for g in (h, h // share))
        length = t + 1 if causal else x.shape[1]
        query = turned(q[b, t, columns], t)
        scores = np.array([query @ turned(k[b, s, keys], s) / math.sqrt(width) for s in range(length)])
        weights = np.exp(scores - scores.max())
        mixed[b, t, columns] = (weights / weights.sum()) @ v[b, :length, keys]
    return _affine(mixed, w, f"{name}out.")


def _swiglu(x, w, name=""):
    gate = _affine(x, w, f"{name}gate.")
    return _affine(gate / (1 + np.exp(-gate)) * _affine(x, w, f"{name}up."), w, f"{name}down.")


def _rms_norm(x, w, name, epsilon=1e-6):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * w[f"{name}scale"]


def _block(x, w, name="", causal=True):
    x = x + _attention(_norm(x, w, f"{name}norm1."), w, f"{name}attention.", causal=causal)
    return x + _mlp(_norm(x, w, f"{name}norm2."), w, f"{name}mlp.")


def _gpt(ids, w):
    x = w["tokens.table"][ids] + w["positions"][: ids.shape[1]]
    for k in range(2):
        x = _block(x, w, f"blocks.{k}.")
    x = _norm(x, w, "norm.")
    return _affine(x, w, "head.") if "head.weight" in w else x @ w["tokens.table"].T


def _embedded(ids, w):
    return np.where((ids == 3)[..., None], 0, w["table"][ids])


X = np.random.default_rng(0).normal(size=(2, 3, 4))
WIDE = np.random.default_rng(2).normal(size=(2, 3, 16))
ROTATED = np.random.default_rng(3).normal(size=(2, 3, 2, 6))
IDS = np.random.default_rng(1).integers(0, 6, size=(2, 3))
IDS[0, 1] = 3


def _grouped_attention(kv_heads, interleaved, stream):
    rotary = nn.RotaryEmbedding(4, 100.0, interleaved=interleaved)
    return nn.Attention(16, 4, stream, "tp", kv_heads=kv_heads, rotary=rotary, bias=False, dtype=F8)


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
    "Linear, options": (
        lambda: nn.Linear(4, 6, MESH(None, None), MESH("tp"), input=MESH(None, None, "tp"),
                          output=MESH("dp", None, "tp"), initialiser=nn.ones, dtype=F8),
        X, lambda x, w: _affine(x, w, ""),
    ),
    "Linear, no bias": (lambda: nn.Linear(4, 6, MESH("tp", None), False, dtype=F8), X, lambda x, w: x @ w["weight"]),
    "LayerNorm, epsilon": (
        lambda: nn.LayerNorm(4, MESH("tp"), 0.5, F8), X, lambda x, w: _norm(x, w, "", 0.5),
    ),
    "MLP, tanh": (
        lambda: nn.MLP(4, 8, STREAM, "tp", function=ops.tanh, dtype=F8), X, lambda x, w: _mlp(x, w, function=np.tanh),
    ),
    "Attention, both ways": (
        lambda: nn.Attention(4, 2, STREAM, "tp", causal=False, dtype=F8), X, lambda x, w: _attention(x, w, causal=False),
    ),
    "TransformerBlock, both ways": (
        lambda: nn.TransformerBlock(4, 2, 8, STREAM, "tp", causal=False, dtype=F8), X,
        lambda x, w: _block(x, w, causal=False),
    ),
    "RMSNorm": (lambda: nn.RMSNorm(4, MESH("tp"), dtype=F8), X, lambda x, w: _rms_norm(x, w, "")),
    "SwiGLU": (lambda: nn.SwiGLU(4, 6, STREAM, "tp", dtype=F8), X, _swiglu),
    "SwiGLU, sequence parallel": (lambda: nn.SwiGLU(4, 6, MESH("dp", "tp", None), "tp", dtype=F8), X, _swiglu),
    "RotaryEmbedding": (lambda: nn.RotaryEmbedding(6), ROTATED, lambda x, w: _rotary(x)),
    "RotaryEmbedding, interleaved": (
        lambda: nn.RotaryEmbedding(6, 500.0, interleaved=True), ROTATED, lambda x, w: _rotary(x, 500.0, True),
    ),
    **{
        f"Attention, {kv_heads} of 4 heads{' interleaved' * interleaved}{' by sequence' * sequence}": (
            partial(_grouped_attention, kv_heads, interleaved, MESH("dp", "tp" if sequence else None, None)), WIDE,
            partial(_attention, heads=4, kv_heads=kv_heads, rotate=partial(_rotated, base=100.0, interleaved=interleaved)),
        )
        for kv_heads, interleaved, sequence in ((1, False, False), (1, True, True), (2, True, False), (2, False, True), (4, False, True))
    },
    "GPT, tied": (lambda: nn.GPT(6, 4, 2, 2, 5, STREAM, "tp", tied=True, rows="owned", dtype=F8), IDS, _gpt),
}  # fmt: skip


def _public(base):
    return {n for n in nn.__all__ if inspect.isclass(getattr(nn, n)) and issubclass(getattr(nn, n), base)}


def test_every_public_layer_and_optimiser_has_a_reference():
    assert {name.split(",")[0] for name in LAYERS} == _public(nn.Module) - {"Module", "ModuleList"}
    by_hand = {kind.__name__ for kind, _ in test_optimiser_state.OPTIMISERS.values()}
    assert by_hand == _public(nn.Optimiser) - {"Optimiser"}


@pytest.mark.ranks(4)
@pytest.mark.parametrize("name", LAYERS)
def test_layers_equal_their_reference_by_hand(name, world):
    """Values equal the reference of `name`, and gradients its slopes along random directions.

    Gradients are compared for every parameter and for the input.
    """
    make, x, reference = LAYERS[name]
    layer, rng = make().materialise(world, seed=2), np.random.default_rng(5)
    for parameter in layer.parameters():  # Ones and zeros would hide an unused scale.
        value = Tensor.from_global(
            rng.normal(size=parameter.shape), parameter.layout, world, requires_grad=True
        )
        parameter.assign(value)
    weights = {key: p.value.full().copy() for key, p in layer.named_parameters()}
    graded = x.dtype.kind == "f"
    operand = Tensor.from_global(x, MESH("dp", *[None] * (x.ndim - 1)), world, requires_grad=graded)
    y = layer(operand)
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
    if graded:
        along = rng.normal(size=x.shape)
        ends = [float((dy * reference(x + step * along, weights)).sum()) for step in (1e-6, -1e-6)]
        slope = (ends[0] - ends[1]) / 2e-6
        assert float((operand.grad.full() * along).sum()) == pytest.approx(slope, rel=1e-6, abs=1e-5)


@pytest.mark.ranks(4)
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("sequence", [False, True], ids=["tensor", "sequence"])
def test_grouped_heads_communicate_like_equal_heads(world, kv_heads, sequence):
    """Grouped heads need the collectives of equal heads, also with fewer heads of keys than ranks.

    The forward pass only gathers the input and adds the result up.
    """
    mesh = Mesh((4,), ("tp",))
    stream, x = mesh(None, "tp" if sequence else None, None), np.random.default_rng(0).normal(size=(2, 4, 16))
    traces = []
    for options in ({}, {"kv_heads": kv_heads, "rotary": nn.RotaryEmbedding(4), "bias": False}):
        layer = nn.Attention(16, 4, stream, "tp", dtype=F8, **options).materialise(world, seed=2)
        with record() as trace:
            layer(Tensor.from_global(x, stream, world))
        traces.append(trace.counts())
    assert (
        traces[0] == traces[1] == ({"all_gather": 1, "reduce_scatter": 1} if sequence else {"all_reduce": 1})
    )
    assert layer.k.weight.shape == (16, 4 * kv_heads)
    parts = [shard.shape[1] for shard in layer.k.weight.value.shards]
    assert set(parts) == {4 if kv_heads == 4 else 4 * kv_heads}


@pytest.mark.ranks(2)
def test_rotary_embedding_knows_positions_of_split_and_continued_sequences(world):
    """Rotation needs no communication, and `start` is the position of the first element.

    Half precision is rotated in float32.
    """
    mesh, rotary = Mesh((2,), ("cp",)), nn.RotaryEmbedding(6)
    full_array = np.random.default_rng(4).normal(size=(1, 8, 2, 6))
    with record() as trace:
        rotated = rotary(Tensor.from_global(full_array, mesh(None, "cp", None, None), world))
        continued = rotary(
            Tensor.from_global(full_array[:, 5:], mesh(None, None, "cp", None), world), start=5
        )
    assert trace.counts() == {} and rotated.layout == mesh(None, "cp", None, None)
    np.testing.assert_allclose(rotated.full(), _rotary(full_array), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(continued.full(), _rotary(full_array)[:, 5:], rtol=1e-12, atol=1e-12)
    half = full_array.astype(np.float16)
    result = rotary(Tensor.from_global(half, mesh(None, "cp", None, None), world), start=1000)
    assert result.dtype == np.float16
    np.testing.assert_allclose(result.full(), _rotary(half.astype(float), start=1000), rtol=2e-3, atol=2e-3)


def test_invalid_heads_and_sizes_are_refused():
    for make, text in (
        (lambda: nn.RotaryEmbedding(5), "RotaryEmbedding: size must be an even number of 2 or more, got 5"),
        (lambda: nn.RotaryEmbedding("6"), "size must be an even number of 2 or more, got '6'"),
        (lambda: nn.Attention(16, 4, STREAM, "tp", kv_heads=3), "Attention: kv_heads must divide the 4 heads, got 3"),
        (lambda: nn.Attention(16, 4, STREAM, "tp", kv_heads=0), "kv_heads must divide the 4 heads, got 0"),
        (
            lambda: nn.RotaryEmbedding(6)(Tensor.from_global(ROTATED[..., :4], MESH("dp", None, None, None), LockStep(4))),
            r"x must have shape \[batch, sequence, heads, 6\], got \(2, 3, 2, 4\)",
        ),
    ):  # fmt: skip
        with pytest.raises(LayoutError, match=text):
            make()


@pytest.mark.ranks(4)
@pytest.mark.parametrize("largest", [0.5, 3.0, 100.0])
def test_clipping_equals_arithmetic_by_hand(largest, world):
    """Gradients of norm 13 are scaled to the `largest` norm, or stay if their norm is smaller."""
    layer = nn.Linear(2, 2, MESH(None, "tp"), dtype=F8).materialise(world)
    slopes = {"weight": np.array([[3.0, 0.0], [4.0, 0.0]]), "bias": np.array([0.0, 12.0])}
    for name, parameter in layer.named_parameters():
        parameter.value.grad = Tensor.from_global(slopes[name], parameter.layout, world)
    assert nn.clip(layer.parameters(), largest) == pytest.approx(13, rel=1e-12)
    for name, parameter in layer.named_parameters():
        expected = slopes[name] * min(1.0, largest / 13)
        np.testing.assert_allclose(parameter.grad.full(), expected, rtol=1e-6)
    assert nn.global_norm(layer.parameters()) == pytest.approx(min(13.0, largest), rel=1e-6)


@pytest.mark.parametrize("loss, by_hand", [(nn.mse_loss, np.square), (nn.l1_loss, np.abs)])
def test_losses_equal_arithmetic_by_hand(loss, by_hand):
    x, y = np.random.default_rng(3).normal(size=(2, 4, 6))
    world = LockStep(4)
    left, right = (Tensor.from_global(v, MESH("dp", "tp"), world) for v in (x, y))
    expected = by_hand(x - y)
    np.testing.assert_allclose(loss(left, right, "none").full(), expected, rtol=1e-14)
    assert loss(left, right, "sum").item() == pytest.approx(expected.sum(), rel=1e-13)
    assert (
        loss(left, right).item()
        == loss(left, right, "mean").item()
        == pytest.approx(expected.mean(), rel=1e-13)
    )
    with pytest.raises(InputError, match=r"^reduction must be one of mean, sum, none, got 'max'$"):
        loss(left, right, "max")


def small_gpt() -> nn.GPT:
    return nn.GPT(8, 4, 2, 1, 4, MESH(None, None, None), None).materialise(LockStep(4))


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: nn.Linear(6, 4, "tp"), UsageTypeError, "layout must be a layout, such as mesh('dp', None), got 'tp'"),
        (lambda: nn.Linear(6, 4, MESH), UsageTypeError, "layout must be a layout, such as"),
        (lambda: nn.Embedding(3.5, 2, MESH(None, None)), UsageTypeError, "the sizes of a parameter are integers, but got (3.5, 2)"),
        (lambda: nn.LayerNorm("4", MESH(None)), UsageTypeError, "the sizes of a parameter are integers, but got ('4',)"),
        (lambda: nn.Parameter(3, MESH(None)), UsageTypeError, "the sizes of a parameter are integers, but got 3"),
        (lambda: nn.Linear(6, 4, MESH(None, None), dtype="flot32"), InputError, "no element type is called 'flot32'; did you mean 'float32'?"),
        (lambda: nn.Adam([], betas=0.9), InputError, "Adam: betas must be two numbers, got 0.9; pass a pair"),
        (lambda: nn.Adam([], betas=(0.9,)), InputError, "Adam: betas must be two numbers, got (0.9,); pass a pair"),
        (lambda: nn.Adam([], betas=("0.9", 0.9)), InputError, "Adam: betas must be numbers of at least 0"),
        (lambda: nn.Adam([], epsilon=None), InputError, "Adam: epsilon must be a number of 0 or more, got None"),
        (lambda: nn.SGD([], momentum="0.9"), InputError, "SGD: momentum must be a number of 0 or more, got '0.9'"),
        (lambda: nn.SGD([], weight_decay=-1), InputError, "SGD: weight_decay must be a number of 0 or more, got -1"),
        (lambda: nn.SGD([], state_layout="dp"), UsageTypeError, "SGD: state_layout must be a function of a parameter, got 'dp'"),
        (lambda: nn.SGD([]).load_state_dict(None), UsageTypeError, "load_state_dict: tensors must be a dict"),
        (lambda: nn.backward(None), UsageTypeError, "backward: loss must be a tensor, got a NoneType"),
        (lambda: nn.Linear(-1, 4, MESH(None, None)), InputError, "Parameter: shape must have sizes of 0 or more, got (-1, 4)"),
        (lambda: nn.Parameter((4,), MESH(None), np.ones(4)), UsageTypeError, "Parameter: initialiser must be a function"),
        (lambda: nn.Parameter((4,), MESH(None)).materialise(LockStep(4), None), UsageTypeError, "seed must be an integer, got None"),
        (lambda: nn.Normal("1"), InputError, "Normal: std must be a number of 0 or more, got '1'"),
        (lambda: nn.Uniform(-1), InputError, "Uniform: bound must be a number of 0 or more, got -1"),
        (lambda: nn.Attention(8, 0, MESH(None, None, None), None), LayoutError, "Attention: heads must divide width 8"),
        (lambda: nn.Attention(8, None, MESH(None, None, None), None), UsageTypeError, "Attention: width, heads and kv_heads"),
        (lambda: nn.Attention(8, 2, None, None), UsageTypeError, "layout must be a layout, such as"),
        (lambda: nn.RotaryEmbedding(2, None), LayoutError, "RotaryEmbedding: base must be a positive number, got None"),
        (lambda: nn.MLP(8, 8, None, "tp"), UsageTypeError, "layout must be a layout, such as"),
        (lambda: nn.Sequential(nn.zeros, 3), UsageTypeError, "Sequential: modules must be modules or functions of a tensor, got 3"),
        (lambda: nn.ModuleList(3), UsageTypeError, "ModuleList: modules must be a list of modules, got 3"),
        (lambda: nn.GPT(8, 4, 2, None, 4, MESH(None, None, None), None), LayoutError, "GPT: blocks must be an integer of 0 or more, got None"),
        (lambda: small_gpt()(np.zeros((1, 5), int)), LayoutError, "GPT: ids must have at most 4 tokens per sequence, got shape (1, 5)"),
    ],
)  # fmt: skip
def test_layers_and_optimisers_refuse_invalid_arguments(call, error, message):
    with pytest.raises(error, match=re.escape(message)):
        call()


def test_a_layer_norm_over_several_dims_equals_arithmetic_by_hand():
    x, world = np.random.default_rng(4).normal(size=(4, 6, 2)), LockStep(4)
    norm = nn.LayerNorm((6, 2), MESH(None, None), dtype=np.float64)
    norm.materialise(world)
    centred = x - x.mean((1, 2), keepdims=True)
    expected = centred / np.sqrt((centred**2).mean((1, 2), keepdims=True) + 1e-5)
    for layout in (MESH("dp", None, None), MESH(None, "dp", "tp")):
        np.testing.assert_allclose(norm(Tensor.from_global(x, layout, world)).full(), expected, rtol=1e-10)
    assert norm.scale.shape == norm.shift.shape == (6, 2)
    with pytest.raises(LayoutError, match="of 1 dim,"):
        nn.LayerNorm((6, 2), MESH(None))


def test_cross_entropy_equals_a_loop_by_hand():
    """Losses equal a loop with class weights, an ignored label and smoothed labels.

    Classes are dim 1, which an axis splits.
    """
    rng, world = np.random.default_rng(5), LockStep(4)
    x, labels, weight = rng.normal(size=(4, 6, 2)), rng.integers(0, 6, (4, 2)), rng.uniform(1, 2, 6)
    labels[1, 0] = 5
    losses, counts = np.zeros((4, 2)), np.where(labels == 5, 0, weight[labels])
    for i, j in zip(*np.nonzero(counts)):
        logs = x[i, :, j] - np.log(np.exp(x[i, :, j]).sum())
        losses[i, j] = -0.75 * weight[labels[i, j]] * logs[labels[i, j]] - 0.25 * (weight * logs).mean()
    tensors = [Tensor.from_global(v, layout, world) for v, layout in (
        (x, MESH("dp", "tp", None)), (labels, MESH("dp", None)), (weight, MESH(None)))]  # fmt: skip
    for reduction, expected in ("none", losses), ("sum", losses.sum()), ("mean", losses.sum() / counts.sum()):
        loss = nn.cross_entropy(*tensors, ignore_index=5, reduction=reduction, label_smoothing=0.25)
        np.testing.assert_allclose(loss.full(), expected, rtol=1e-12)
        arrays = nn.cross_entropy(
            tensors[0], labels.tolist(), weight, ignore_index=5, reduction=reduction, label_smoothing=0.25
        )
        np.testing.assert_allclose(arrays.full(), expected, rtol=1e-12)
    message = re.escape(
        "Expected target size [4, 2], got [4]: classes are dim 1 of the input, of shape [4, 6, 2]"
    )
    with pytest.raises(InputError, match=message):
        nn.cross_entropy(tensors[0], Tensor.from_global(labels[:, 0], MESH("dp"), world))
    for loss in nn.cross_entropy, nn.nll_loss:
        with pytest.raises(
            UsageTypeError, match=f"^{loss.__name__} takes tensors, but got ndarray, ndarray; make"
        ):
            loss(x, labels)


def test_ignored_labels_cost_nothing_if_their_class_is_impossible():
    """Class 0 replaces an ignored label; the gradient stays 0 if the logit of class 0 is -inf."""
    world, x = LockStep(2), np.array([[-np.inf, 1.0, 2.0], [-np.inf, 0.0, 0.0]])
    mesh, labels = Mesh((2,), ("dp",)), np.array([-100, 1])
    for loss, values in (nn.cross_entropy, x), (nn.nll_loss, x - np.log(np.exp(x).sum(1))[:, None]):
        logits = Tensor.from_global(values, mesh("dp", None), world, requires_grad=True)
        elements = loss(logits, Tensor.from_global(labels, mesh("dp"), world), reduction="none")
        np.testing.assert_allclose(elements.full(), [0, np.log(2)])
        ops.sum(elements).backward()
        assert logits.grad is not None
        np.testing.assert_array_equal(logits.grad.full()[0], 0)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_initialisers_scale_random_numbers(dtype):
    """Initialisers scale the plain random numbers of `dtype` that have an equal key.

    Without a given scale they divide by the square root of the number of rows.
    """
    full_index, shape, kind = (slice(0, 9), slice(0, 40)), (9, 40), np.dtype(dtype)
    block = (slice(2, 5), slice(7, 40))
    normal, uniform = (
        make(full_index, shape, kind, 5) for make in (random.normal_block, random.uniform_block)
    )
    expected = {
        nn.Normal(): normal / 3, nn.Normal(0.02): normal * kind.type(0.02),
        nn.Uniform(): (2 * uniform - 1) / 3, nn.Uniform(0.5): uniform - kind.type(0.5),
        nn.zeros: np.zeros(shape, kind), nn.ones: np.ones(shape, kind),
    }  # fmt: skip
    for make, values in expected.items():
        shard = make(block, shape, kind, 5)
        assert shard.dtype == kind
        np.testing.assert_allclose(shard, values[block], rtol=1e-6, atol=1e-7)


ROWS = {
    "up.weight": ((8, 32), "-t"), "up.bias": ((32,), "t"), "down.weight": ((32, 8), "t-"), "down.bias": ((8,), "-"),
}  # fmt: skip
HEADS = {
    f"{projection}.{name}": row
    for projection in "qkv"
    for name, row in {"weight": ((8, 8), "-t"), "bias": ((8,), "t")}.items()
}
HEADS |= {"out.weight": ((8, 8), "t-"), "out.bias": ((8,), "-")}
BLOCK = {f"norm{k}.{name}": ((8,), "-") for k in (1, 2) for name in ("scale", "shift")}
BLOCK |= {f"attention.{name}": row for name, row in HEADS.items()} | {
    f"mlp.{name}": row for name, row in ROWS.items()
}


@pytest.mark.parametrize("sequence", ["tp", None])
@pytest.mark.parametrize("tied", [False, True])
def test_parameters_of_a_network_have_megatrons_layouts(sequence, tied):
    """First weights are split by columns, second weights by rows; other parameters are replicated.

    If `tied`, the head has no weight. If `sequence` is an axis, positions are split by rows.
    """
    gpt = nn.GPT(12, 8, 2, 2, 6, MESH("dp", sequence, None), "tp", tied=tied)
    expected = {"tokens.table": ((12, 8), "t-"), "positions": ((6, 8), "t-" if sequence else "--")}
    expected |= {f"blocks.{k}.{name}": row for k in range(2) for name, row in BLOCK.items()}
    expected |= {"norm.scale": ((8,), "-"), "norm.shift": ((8,), "-")}
    expected |= {} if tied else {"head.weight": ((8, 12), "-t")}
    parameters = dict(gpt.named_parameters())
    assert parameters.keys() == expected.keys()
    for name, (shape, dims) in expected.items():
        layout = MESH(*("tp" if dim == "t" else None for dim in dims))
        assert (parameters[name].shape, parameters[name].layout, parameters[name].dtype) == (
            shape,
            layout,
            np.float32,
        ), name
    with pytest.raises(LayoutError, match=r"heads must divide width 8 .* 2 ranks along axis 'tp', got 3"):
        nn.Attention(8, 3, STREAM, "tp")
    with pytest.raises(LayoutError, match=r"heads must divide width 8 .* 2 ranks along axis 'tp', got 1"):
        nn.Attention(8, 1, STREAM, "tp")


def test_a_state_is_split_along_the_first_divisible_dim():
    """`sharded_over` splits the first dim whose shards the axis divides.

    The layout stays if no dim is divisible, or if the axis splits the parameter already.
    """
    mesh = Mesh((2, 3), ("dp", "tp"))
    split = nn.sharded_over("dp")
    for entries in itertools.product([(), ("tp",), ("dp",), ("tp", "dp")], repeat=2):
        if len({*entries[0], *entries[1]}) < len(entries[0] + entries[1]):
            continue
        for shape in itertools.product((3, 4, 6, 12), repeat=2):
            layout, expected = mesh(*entries), [*entries]
            if "dp" not in entries[0] + entries[1]:
                shard_sizes = [size / (3 if entry else 1) for size, entry in zip(shape, entries)]
                dim = next((d for d, size in enumerate(shard_sizes) if size % 2 == 0), None)
                if dim is not None:
                    expected[dim] = (*entries[dim], "dp")
            assert split(nn.Parameter(shape, layout)) == mesh(*expected), (shape, entries)


def test_a_list_of_modules_is_a_list():
    layers = [nn.Linear(2, 2, MESH(None, None)) for _ in range(4)]
    modules = nn.ModuleList(layers[:1])
    assert modules.append(layers[1]) is modules and modules.extend(iter(layers[2:])) is modules
    assert [*modules] == layers and len(modules) == 4
    assert modules[1] is layers[1] and modules[-1] is layers[3]
    assert not len(nn.ModuleList()) and [*nn.ModuleList()] == []


def test_a_parameter_returns_its_gradient_until_it_forgets_it():
    world, mesh = LockStep(4), Mesh((4,), ("dp",))
    weight = nn.Parameter((8, 2), mesh(None, None), nn.ones)
    with pytest.raises(WorldError, match=r"^parameter \(8, 2\) has no values yet; call materialise\(\)$"):
        weight.value
    weight.forget_gradient()  # A parameter without a gradient accepts the call.
    with pytest.raises(LayoutError, match="for tensors of 1 dim, but the shape is"):
        weight.keep_gradient(lambda parameter: mesh("dp"))
    weight.materialise(world)
    weight.keep_gradient(lambda parameter: mesh("dp", None))
    for count in (1, 2):
        nn.backward(ops.sum(weight.value))
        assert weight.grad.layout == mesh("dp", None) and (weight.grad.full() == count).all()
    weight.forget_gradient()
    assert weight.grad is None
    values = Tensor.from_global(np.full((8, 2), 3, np.float32), mesh("dp", None), world)
    weight.assign(values)
    assert (
        weight.value.layout == mesh(None, None)
        and weight.value.requires_grad
        and weight.value.gradient_layout
    )
    assert (weight.value.full() == 3).all()


@pytest.mark.parametrize("seed", [0, 1, 77])
def test_first_values_depend_on_the_seed_and_the_name(seed):
    """Seed and checksum of the name are the upper and the lower half of the initialiser's key."""
    model = nn.Sequential(nn.Linear(3, 4, MESH(None, "tp"))).materialise(LockStep(4), *[seed] * (seed > 0))
    key = seed * 2**32 + zlib.crc32(b"steps.0.weight")
    expected = nn.Normal()((slice(0, 3), slice(0, 4)), (3, 4), np.dtype("f4"), key)
    np.testing.assert_array_equal(model[0].weight.value.full(), expected)


class _Program:
    """A program that records the names of the methods called on it."""

    def __init__(self):
        self.recorded = []

    def __getattr__(self, name):
        return lambda *_: self.recorded.append(name)


def test_only_the_innermost_program_records_updates_of_parameters():
    layer = nn.Linear(2, 2, MESH(None, "tp"), bias=False).materialise(LockStep(4))
    layer.weight.value.grad = layer.weight.value.detach()
    recorders = [_Program() for _ in range(3)]
    programs.extend(recorders)
    try:
        nn.SGD(layer, 0.5).step()
    finally:
        del programs[:]
    outer, between, inner = (program.recorded for program in recorders)
    assert outer == between == [] and "record_parameter" in inner and inner.count("record_assignment") == 1


def test_a_tensor_is_trained_like_a_parameter():
    """SGD subtracts the rate times the gradient from a tensor in one process."""
    tensor = Tensor.from_global(
        np.ones((2, 3)), Mesh((1,), ("x",))("x", None), LockStep(1), requires_grad=True
    )
    optimiser = nn.SGD([tensor], 0.1)
    (parameter,) = optimiser.parameters
    assert (parameter.shape, parameter.layout, parameter.dtype) == (tensor.shape, tensor.layout, tensor.dtype)
    tensor.grad = tensor.detach() * 2.0
    optimiser.step()
    np.testing.assert_allclose(tensor.full(), np.full((2, 3), 0.8), rtol=1e-15)


def test_layers_and_optimisers_use_their_arguments():
    """Layouts, initialisers, heads, rates and shared parameters have their effect."""
    world, mesh = LockStep(2), Mesh((2,), ("tp",))
    layer = nn.Linear(4, 6, mesh(None, None), bias=mesh("tp")).materialise(world)
    assert layer.bias.layout == mesh("tp") and layer.weight.layout == mesh(None, None)
    ones = nn.Embedding(4, 2, mesh(None, None), initialiser=nn.ones).materialise(world)
    assert ones.table.value.full().tolist() == [[1.0, 1.0]] * 4
    nn.Attention(6, 3, mesh(None, None, None), None)
    with pytest.raises(LayoutError, match="heads must divide"):
        nn.Attention(6, 3, mesh(None, None, None), "tp")
    with pytest.raises(LayoutError):
        nn.Parameter((4,), mesh(None, None))
    tied = nn.Sequential(layer, layer)
    assert [name.split(".")[-1] for name, _ in tied.named_parameters()] == ["weight", "bias"]
    for argument in (layer.weight.value, "layer", 3):
        with pytest.raises(UsageTypeError, match="parameters must be a module or a list"):
            nn.SGD(argument, 0.1)
    assert nn.clip(layer, 1.0) == 0.0  # No parameter has a gradient.
    before = layer.bias.value.full()
    nn.backward(layer(Tensor.from_global(np.ones((2, 4), "f4"), mesh(None, None), world)).sum())
    zero_rate = nn.SGD(layer, 0)
    world.provenance, provenance_number = Provenance(), layer.bias.value.provenance_number
    zero_rate.step()
    np.testing.assert_array_equal(layer.bias.value.full(), before)
    assert 0 < layer.bias.value.provenance_number < 2**61  # as many bits as a hash
    assert layer.bias.value.provenance_number != provenance_number
    nn.backward(layer(Tensor.from_global(np.ones((2, 4), "f4"), mesh(None, None), world)).sum())
    assert layer.bias.value.grad is not None
    zero_rate.zero_grad()
    assert layer.bias.value.grad is None and layer.weight.value.grad is None
