"""Operators and optimisers on 16-bit floats beside torch's: no farther from torch's own float64 than torch is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from operators import _ids, _normal, _positive

import spmdsim.ops as ops
from spmdsim import Mesh, Tensor, nn
from spmdsim.core import Layout
from spmdsim.nn.optimisers import SGD, Adam

torch = pytest.importorskip("torch")
F = torch.nn.functional

TYPES = {np.dtype(ml_dtypes.bfloat16): torch.bfloat16, np.dtype(np.float16): torch.float16}
ROUNDOFF = {np.dtype(ml_dtypes.bfloat16): 2.0**-8, np.dtype(np.float16): 2.0**-11}


@dataclass(frozen=True)
class Row:
    name: str
    ours: Callable[..., Any]
    torchs: Callable[..., Any]
    operands: tuple[np.ndarray, ...]


X, W, V = _normal(16, 64), _normal(64, 24), _normal(64)
ROWS = [
    Row("sum", lambda x: ops.sum(x, 1), lambda x: x.sum(1), (X + 4,)),
    Row("sum_0", lambda x: ops.sum(x, 0), lambda x: x.sum(0), (X + 4,)),
    Row("mean", lambda x: ops.mean(x, 1), lambda x: x.mean(1), (X * 900,)),
    Row("var", lambda x: ops.var(x, 1), lambda x: x.var(1, correction=0), (X + 4,)),
    Row("std", lambda x: ops.std(x, 1, correction=1), lambda x: x.std(1), (X + 4,)),
    Row("prod", lambda x: ops.prod(x, 1), lambda x: x.prod(1), (_positive(16, 12),)),
    Row("max", lambda x: ops.max(x, 1), lambda x: x.amax(1), (X,)),
    Row("matmul", ops.matmul, torch.matmul, (X, W)),
    Row("batched", ops.matmul, torch.matmul, (_normal(4, 8, 16), _normal(4, 16, 8))),
    Row(
        "einsum", lambda a, b: ops.einsum("ij,kj->ik", a, b), lambda a, b: torch.einsum("ij,kj->ik", a, b),
        (X, _normal(8, 64)),
    ),
    Row("linear", ops.linear, lambda x, w, b: F.linear(x, w.T, b), (X, W, _normal(24))),
    Row("softmax", lambda x: ops.softmax(x, 1), lambda x: F.softmax(x, 1), (X * 4,)),
    Row("log_softmax", lambda x: ops.log_softmax(x, 1), lambda x: F.log_softmax(x, 1), (X * 4,)),
    Row("layer_norm", ops.layer_norm, lambda x, a, b: F.layer_norm(x, (64,), a, b), (X * 300, V, V[::-1].copy())),
    Row("rms_norm", ops.rms_norm, lambda x, a: F.rms_norm(x, (64,), a, 1e-6), (X * 300, V)),
    Row("l2_normalize", ops.l2_normalize, lambda x: F.normalize(x, dim=-1, eps=1e-6), (X * 300,)),
    Row("cross_entropy", ops.cross_entropy, F.cross_entropy, (X, _ids(64, 16))),
    Row(
        "cross_entropies", lambda x, i: ops.cross_entropy(x, i, "none"),
        lambda x, i: F.cross_entropy(x, i, reduction="none"), (X, _ids(64, 16)),
    ),
    Row("gelu", ops.gelu, lambda x: F.gelu(x, approximate="tanh"), (X * 2,)),
    Row("gelu_exact", lambda x: ops.gelu(x, "none"), F.gelu, (X * 2,)),
    Row("silu", ops.silu, F.silu, (X * 2,)),
    Row("sigmoid", ops.sigmoid, torch.sigmoid, (X * 2,)),
    Row("softplus", ops.softplus, F.softplus, (X * 2,)),
    Row("tanh", ops.tanh, torch.tanh, (X,)),
    Row("exp", ops.exp, torch.exp, (X,)),
    Row("rsqrt", ops.rsqrt, torch.rsqrt, (_positive(16, 8),)),
    Row("divide", ops.divide, torch.divide, (X, _positive(16, 1))),
    Row("power", ops.power, torch.pow, (_positive(16, 8), _normal(8))),
    Row("embedding", ops.embedding, F.embedding, (_ids(9, 64, 64), _normal(9, 4))),
    Row("add_bias", ops.add, torch.add, (X, V)),
    Row("where", lambda x: ops.where(ops.greater(x, 0), x, ops.multiply(x, x)),
        lambda x: torch.where(x > 0, x, x * x), (X,)),
]  # fmt: skip


def to_torch(array: np.ndarray, kind) -> Any:
    if array.dtype.kind != "f":
        return torch.from_numpy(array)
    return torch.from_numpy(array.astype("f8")).to(kind).requires_grad_()


def by_torch(row: Row, operands, dy, kind) -> list[np.ndarray]:
    """The result and the gradients that torch has in a type, as float64."""
    tensors = [to_torch(x, kind) for x in operands]
    result = row.torchs(*tensors)
    result.backward(torch.from_numpy(dy.astype("f8")).to(kind))
    return [x.detach().double().numpy() for x in (result, *[x.grad for x in tensors if x.requires_grad])]


def last_split(mesh: Mesh, ndim: int) -> Layout:
    return Layout(mesh, [()] * (ndim - 1) + [("x",)]) if ndim else Layout(mesh, [])


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("dtype", TYPES, ids=["bf16", "f16"])
@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_operators_are_no_farther_from_float64_than_torchs(world, row, dtype):
    mesh = Mesh((world.size,), ("x",))
    numbers = [x.astype(dtype).astype("f8") if x.dtype.kind == "f" else x for x in row.operands]
    tensors = [
        Tensor.from_global(
            x.astype(dtype) if x.dtype.kind == "f" else x,
            last_split(mesh, x.ndim),
            world,
            requires_grad=x.dtype.kind == "f",
        )
        for x in numbers
    ]
    result = row.ours(*tensors)
    dy = _normal(*result.shape, seed=5).astype(dtype)
    exact = by_torch(row, numbers, dy, torch.float64)
    torchs = by_torch(row, numbers, dy, TYPES[dtype])
    result.backward(Tensor.from_global(dy, Layout(mesh, [()] * dy.ndim), world))
    outputs = [result, *[x.grad for x in tensors if x.requires_grad]]
    for k, (ours, theirs, truth) in enumerate(zip(outputs, torchs, exact, strict=True)):
        assert ours.dtype == dtype
        once = k == 0 and row.name != "linear"  # a product, and then a sum
        rounding = ROUNDOFF[dtype] * (1.01 if once else 2) * np.abs(truth).max()
        error = np.abs(ours.full().astype("f8") - truth).max()
        assert error <= max(np.abs(theirs - truth).max(), rounding) + 1e-6, (row.name, k)


OPTIMISERS = {
    "sgd": (SGD, {}, torch.optim.SGD, {}),
    "momentum": (SGD, {"momentum": 0.9}, torch.optim.SGD, {"momentum": 0.9}),
    "nesterov": (
        SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
        torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    ),
    "dampening": (
        SGD, {"momentum": 0.9, "dampening": 0.5}, torch.optim.SGD, {"momentum": 0.9, "dampening": 0.5}
    ),
    "adam": (Adam, {}, torch.optim.Adam, {}),
    "adamw": (Adam, {"weight_decay": 0.1}, torch.optim.AdamW, {"weight_decay": 0.1}),
}  # fmt: skip


@pytest.mark.ranks(1, 4)
@pytest.mark.parametrize("dtype", [*TYPES, np.dtype("f4"), np.dtype("f8")], ids=["bf16", "f16", "f32", "f64"])
@pytest.mark.parametrize("name", OPTIMISERS)
def test_optimisers_are_torchs_with_float32_state(world, name, dtype):
    """torch's optimiser on float32, each new value rounded to 16 bits: what ours does with its float32 state."""
    kind, options, theirs, their_options = OPTIMISERS[name]
    start, steps = _normal(16).astype(dtype), _normal(40, 16, seed=3).astype(dtype)
    mesh = Mesh((world.size,), ("x",))
    weight = nn.Parameter((16,), mesh("x"), lambda index, *_: start[index], dtype)
    weight.materialise(world)
    optimiser = kind([weight], 0.05, **options)
    wide = torch.float64 if dtype == np.float64 else torch.float32
    reference = torch.nn.Parameter(torch.from_numpy(start.astype("f8")).to(wide))
    other = theirs([reference], lr=0.05, **their_options)
    for slope in steps:
        weight.value.grad = Tensor.from_global(slope, mesh("x"), world)
        optimiser.step()
        reference.grad = torch.from_numpy(slope.astype("f8")).to(wide)
        other.step()
        if dtype in TYPES:
            reference.data = reference.data.to(TYPES[dtype]).to(wide)
    unit = ROUNDOFF.get(dtype, float(np.finfo(dtype).eps) * 20 if dtype not in TYPES else 0.0)
    weights, wanted = weight.value.full().astype("f8"), reference.detach().double().numpy()
    # A float32 that lies between two numbers of 16 bits may be rounded either way, and that once in a while.
    np.testing.assert_allclose(weights, wanted, rtol=0, atol=4 * unit * np.abs(wanted).max())
