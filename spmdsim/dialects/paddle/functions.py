"""Paddle's operators: one row each, from which functions and layers are made; arrays are whole on every rank."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

import spmdsim.ops as core
from spmdsim import nn
from spmdsim.dialects.paddle.static.program import recorded
from spmdsim.dialects.paddle.static.variables import Variable
from spmdsim.dialects.paddle.tensors import Tensor, everywhere, together
from spmdsim.dialects.table import Row, same
from spmdsim.errors import RuleError, UsageTypeError
from spmdsim.tensor import Tensor as CoreTensor


def lifted(function: Callable[..., Any], called: str = "") -> Callable[..., Any]:
    """Our function, with arrays among its operands taken as whole ones; recorded where a program is, under a name."""

    @wraps(function)
    def run(*operands: Any, **options: Any) -> Any:
        values = together(
            [x.value if hasattr(x, "as_operand") else x for x in (*operands, *options.values())]
        )
        listed = [x for value in values if isinstance(value, (list, tuple)) for x in value]
        if not any(isinstance(x, CoreTensor) for x in (*values, *listed)):
            values[:1] = [everywhere(x) for x in values[:1]]
        return function(*values[: len(operands)], **dict(zip(options, values[len(operands) :])))

    run.__name__ = called or function.__name__

    @wraps(function)
    def call(*operands: Any, name: str | None = None, **options: Any) -> Any:
        return recorded(run, *operands, **options)

    return call


def _reduction(function: Callable[..., Any]) -> Row:
    return Row(lambda x, axis=None, keepdim=False: function(x, axis, keepdims=keepdim))


def _spread(function: Callable[..., Any]) -> Row:
    def call(x: Any, axis: Any = None, unbiased: bool = True, keepdim: bool = False) -> Any:
        return function(x, axis, keepdims=keepdim, correction=int(unbiased))

    return Row(call)


def _norm(x: Any, p: float = 2.0, axis: Any = None, keepdim: bool = False) -> Any:
    if p == math.inf:
        return core.max(core.absolute(x), axis, keepdims=keepdim)
    powers = core.square(x) if p == 2 else core.power(core.absolute(x), p)
    total = core.sum(powers, axis, keepdims=keepdim)
    return core.sqrt(total) if p == 2 else core.power(total, 1 / p)


def _squeeze(x: Any, axis: Any = None) -> Any:
    """Only dims of size 1 go; others that are named stay."""
    named = range(x.ndim) if axis is None else [axis] if isinstance(axis, int) else axis
    return core.squeeze(x, tuple(d % x.ndim for d in named if x.shape[d] == 1))


def _expand(x: Any, shape: Any) -> Any:
    sizes = list(shape)
    kept = [1] * (len(sizes) - x.ndim) + list(x.shape)
    return core.broadcast_to(x, tuple(k if n == -1 else n for n, k in zip(sizes, kept)))


def _t(input: Any) -> Any:
    if input.ndim > 2:
        raise RuleError(
            f"t takes a tensor of at most 2 dims, but the shape is {input.shape}; nearest: transpose(perm)"
        )
    return core.transpose(input)


def _flatten(x: Any, start_axis: int = 0, stop_axis: int = -1) -> Any:
    start, stop = start_axis % x.ndim, stop_axis % x.ndim
    return core.reshape(x, (*x.shape[:start], math.prod(x.shape[start : stop + 1]), *x.shape[stop + 1 :]))


def _matmul(x: Any, y: Any, transpose_x: bool = False, transpose_y: bool = False) -> Any:
    return core.matmul(x, y, transpose_a=transpose_x, transpose_b=transpose_y)


def _linear(x: Any, weight: Any, bias: Any = None) -> Any:
    y = core.matmul(x, weight)
    return y if bias is None else core.add(y.to(y.layout.reduced), bias)


def _embedding(x: Any, weight: Any, padding_idx: int | None = None, sparse: bool = False) -> Any:
    padding = None if padding_idx is None else padding_idx % weight.shape[0]
    y = core.embedding(x, weight, padding=padding)
    return y.to(y.layout.reduced)


def _gelu(x: Any, approximate: bool = False) -> Any:
    if not isinstance(approximate, bool):
        raise UsageTypeError(f"approximate is True (by tanh) or False (exact), not {approximate!r}")
    return core.gelu(x, approximate)


def _cross_entropy(input: Any, label: Any, reduction: str = "mean") -> Any:
    labels = core.reshape(label, label.shape[:-1]) if label.ndim == input.ndim else label
    return core.cross_entropy(input, labels, reduction)


#: By Paddle's names.
TABLE: dict[str, Row] = {
    **same(
        core,
        "abs=absolute add bmm=matmul ceil cos divide equal erf exp expm1 floor greater_equal greater_than=greater "
        "isfinite isinf isnan less_equal less_than=less log log10 log1p log2 logical_and logical_not logical_or maximum "
        "minimum mm=matmul multiply neg=negative not_equal pow=power reciprocal relu:ReLU rsqrt sigmoid:Sigmoid sign "
        "silu:Silu sin sqrt square subtract tan tanh:Tanh trunc where",
    ),
    "argmin": Row(lambda x, axis=None: core.argmin(x, axis)),
    "argsort": Row(lambda x, axis=-1, descending=False: core.argsort(x, axis, descending)),
    "assign": Row(lambda x: x),
    "clip": Row(lambda x, min=None, max=None: core.clip(x, min, max)),
    "clone": Row(core.identity),
    "cumsum": Row(
        lambda x, axis=None: core.cumulative_sum(core.flatten(x, 0) if axis is None else x, axis or 0)
    ),
    "expand": Row(_expand),
    "full_like": Row(lambda x, fill_value: core.add(core.multiply(x.detach(), 0), fill_value)),
    "norm": Row(_norm),
    "ones_like": Row(lambda x: core.add(core.multiply(x.detach(), 0), 1)),
    "prod": _reduction(core.prod),
    "scale": Row(lambda x, scale=1.0, bias=0.0: core.add(core.multiply(x, scale), bias)),
    "sort": Row(lambda x, axis=-1, descending=False: core.sort(x, axis, descending)),
    "squeeze": Row(_squeeze),
    "std": _spread(core.std),
    "t": Row(_t),
    "tile": Row(lambda x, repeat_times: core.tile(x, repeat_times)),
    "unsqueeze": Row(lambda x, axis: core.expand_dims(x, axis)),
    "var": _spread(core.var),
    "zeros_like": Row(lambda x: core.multiply(x.detach(), 0)),
    "argmax": Row(lambda x, axis=None: core.argmax(x, axis)),
    "cast": Row(lambda x, dtype: core.cast(x, np.dtype(dtype))),
    "flatten": Row(_flatten),
    "gelu": Row(_gelu, "GELU"),
    "log_softmax": Row(lambda x, axis=-1: core.log_softmax(x, axis)),
    "matmul": Row(_matmul),
    "max": _reduction(core.max),
    "mean": _reduction(core.mean),
    "min": _reduction(core.min),
    "reshape": Row(lambda x, shape: core.reshape(x, shape)),
    "softmax": Row(lambda x, axis=-1: core.softmax(x, axis), "Softmax"),
    "sum": _reduction(core.sum),
    "transpose": Row(lambda x, perm: core.transpose(x, perm)),
}
#: Those that networks use only.
NETWORK_TABLE = {
    "cross_entropy": Row(_cross_entropy, "CrossEntropyLoss"),
    "embedding": Row(_embedding),
    "l1_loss": Row(lambda input, label, reduction="mean": nn.l1_loss(input, label, reduction), "L1Loss"),
    "linear": Row(_linear),
    "mse_loss": Row(lambda input, label, reduction="mean": nn.mse_loss(input, label, reduction), "MSELoss"),
}

FUNCTIONS: dict[str, Callable[..., Any]] = {name: lifted(row.call, name) for name, row in TABLE.items()}
FUNCTIONS["concat"] = concat = lifted(
    lambda x, axis=0: core.concat([everywhere(one) for one in x], axis), "concat"
)
concat.__doc__ = "Tensors one after the other."
FUNCTIONS["stack"] = stack = lifted(
    lambda x, axis=0: core.stack([everywhere(one) for one in x], axis), "stack"
)
stack.__doc__ = "Tensors one after the other along a new dim."
FUNCTIONS["einsum"] = einsum = lifted(
    lambda equation, *operands: core.einsum(equation, *[everywhere(one) for one in operands]), "einsum"
)
einsum.__doc__ = "Sums of products, as the equation says."

#: Symbols of tensors and of a program's variables.
SYMBOLS = (
    "add radd sub rsub mul rmul truediv rtruediv pow rpow floordiv rfloordiv mod rmod matmul rmatmul neg abs gt lt ge le "
    "getitem eq ne"
)
_METHODS = {f"__{name}__": lifted(getattr(CoreTensor, f"__{name}__")) for name in SYMBOLS.split()}
for _name, _method in {**_METHODS, **FUNCTIONS, "astype": FUNCTIONS["cast"]}.items():
    if _name not in ("where", "concat", "stack", "einsum"):
        setattr(Tensor, _name, _method)
        setattr(Variable, _name, _method)
for _kind in (Tensor, Variable):  # == is element by element; they hash by identity
    setattr(_kind, "__hash__", object.__hash__)  # noqa: B010
