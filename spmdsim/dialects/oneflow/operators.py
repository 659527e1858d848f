"""Functions, methods and symbols of global tensors, each one of our operators; symbols of local ones are numpy's.

``flow.softmax(x, -1)``, ``x.softmax(-1)``, ``x + 1``, ``x @ w``: operands must be on one placement.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import spmdsim.ops as core
from spmdsim.dialects.oneflow.agreement import same_code
from spmdsim.dialects.oneflow.local import GlobalTensor, LocalTensor, Size
from spmdsim.dialects.oneflow.sbp import OneFlowError


def lifted(function: Callable[..., Any]) -> Callable[..., GlobalTensor]:
    """Our function of tensors as one of global tensors, which must be on one placement.

    Raises:
        RuntimeError: two placements, or a local tensor among the operands.
    """

    def call(*operands: Any, **options: Any) -> GlobalTensor:
        found = [x for x in operands if hasattr(x, "placement")]
        if any(isinstance(x, LocalTensor) for x in operands) or not found:
            raise OneFlowError(
                "Expected global tensors, but got local ones; nearest: x.to_global(placement, sbp) before"
            )
        placement = found[0].placement
        for other in found[1:]:
            if other.placement != placement:
                raise OneFlowError(
                    "Expected all tensors to be on the same placement, but found at least two placements, "
                    f"{placement} and {other.placement}!"
                )
        with same_code():
            values = [x.value if hasattr(x, "placement") else x for x in operands]
            return GlobalTensor(function(*values, **options), placement)

    return call


def _transposed(x: Any, dim0: int, dim1: int) -> Any:
    order = list(range(x.ndim))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return core.transpose(x, order)


def _flat(*numbers: Any) -> tuple[Any, ...]:
    """``f(2, 3)`` and ``f((2, 3))`` alike."""
    return tuple(numbers[0]) if len(numbers) == 1 and not isinstance(numbers[0], int) else numbers


def _unsqueezed(x: Any, dim: int) -> Any:
    shape = list(x.shape)
    shape.insert(dim % (x.ndim + 1), 1)
    return core.reshape(x, shape)


def _squeezed(x: Any, dim: int | None = None) -> Any:
    gone = range(x.ndim) if dim is None else [dim % x.ndim]
    return core.reshape(x, [n for d, n in enumerate(x.shape) if d not in gone or n != 1])


def _flattened(x: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    start, end = start_dim % x.ndim, end_dim % x.ndim
    return core.reshape(x, (*x.shape[:start], math.prod(x.shape[start : end + 1]), *x.shape[end + 1 :]))


def _reduction(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, dim=None, keepdim=False: function(x, dim, keepdims=keepdim)


#: Functions of global tensors by OneFlow's names.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{
        name: lifted(getattr(core, ours))
        for name, ours in {
            "abs": "absolute", "add": "add", "bmm": "matmul", "ceil": "ceil", "cos": "cos", "div": "divide",
            "eq": "equal", "exp": "exp", "floor": "floor", "gelu": "gelu", "gt": "greater", "log": "log",
            "log_softmax": "log_softmax", "lt": "less", "matmul": "matmul", "maximum": "maximum",
            "minimum": "minimum", "mm": "matmul", "mul": "multiply", "neg": "negative", "pow": "power",
            "relu": "relu", "rsqrt": "rsqrt", "sigmoid": "sigmoid", "sign": "sign", "silu": "silu", "sin": "sin",
            "softmax": "softmax", "sqrt": "sqrt", "square": "square", "sub": "subtract", "tanh": "tanh",
            "where": "where",
        }.items()
    },
    "amax": lifted(_reduction(core.max)),
    "amin": lifted(_reduction(core.min)),
    "argmax": lifted(lambda x, dim=None: core.argmax(x, dim)),
    "flatten": lifted(_flattened),
    "mean": lifted(_reduction(core.mean)),
    "permute": lifted(lambda x, *dims: core.transpose(x, _flat(*dims))),
    "prod": lifted(_reduction(core.prod)),
    "reshape": lifted(lambda x, *shape: core.reshape(x, _flat(*shape))),
    "squeeze": lifted(_squeezed),
    "sum": lifted(_reduction(core.sum)),
    "transpose": lifted(_transposed),
    "unsqueeze": lifted(_unsqueezed),
    "view": lifted(lambda x, *shape: core.reshape(x, _flat(*shape))),
}  # fmt: skip


def cat(tensors: Sequence[GlobalTensor], dim: int = 0) -> GlobalTensor:
    """Tensors one after the other."""
    return lifted(lambda *values: core.concat(values, dim))(*tensors)


concat = cat


def cast(x: GlobalTensor, dtype: Any) -> GlobalTensor:
    """Another element type."""
    return lifted(lambda value: core.cast(value, dtype))(x)


_SYMBOLS = {
    "__add__": "add", "__sub__": "sub", "__mul__": "mul", "__truediv__": "div", "__matmul__": "matmul",
    "__pow__": "pow", "__gt__": "gt", "__lt__": "lt",
}  # fmt: skip


def _swapped(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a, b: function(b, a)


def _local(function: Callable[..., Any]) -> Callable[..., LocalTensor]:
    """A function of each rank's own array."""

    def call(*operands: Any) -> LocalTensor:
        first = next(x for x in operands if isinstance(x, LocalTensor))
        if any(isinstance(x, GlobalTensor) for x in operands):
            raise OneFlowError(
                "a local and a global tensor cannot be combined; nearest: to_global or to_local first"
            )
        rows = [
            [x.shards[k] if isinstance(x, LocalTensor) else x for x in operands]
            for k in range(len(first.shards))
        ]
        return LocalTensor([np.asarray(function(*row)) for row in rows], first.world)

    return call


def install() -> None:
    """Give global and local tensors their methods and symbols."""
    methods: dict[str, Any] = {name: f for name, f in FUNCTIONS.items() if name != "where"}
    methods |= {symbol: FUNCTIONS[name] for symbol, name in _SYMBOLS.items()}
    methods |= {
        f"__r{s[2:]}": _swapped(FUNCTIONS[n]) for s, n in _SYMBOLS.items() if n not in ("gt", "lt", "pow")
    }
    methods |= {"__neg__": FUNCTIONS["neg"], "cast": cast, "float": lambda x: cast(x, np.float32)}
    methods |= {
        "__getitem__": lambda x, key: lifted(lambda value: value[key])(x),
        "ndim": property(lambda x: x.value.ndim),
        "T": property(lambda x: FUNCTIONS["permute"](x, *range(x.value.ndim)[::-1])),
        "requires_grad": property(lambda x: x.value.requires_grad),
        "dim": lambda x: x.value.ndim,
        "numel": lambda x: x.value.size,
        "item": lambda x: x.value.item(),
        "size": lambda x, dim=None: x.shape if dim is None else x.shape[dim],
        "detach": lambda x: GlobalTensor(x.value.detach(), x.placement),
    }
    for name, method in methods.items():
        setattr(GlobalTensor, name, method)
    local: dict[str, Any] = {
        "__neg__": _local(operator.neg),
        "sum": _local(np.sum),
        "mean": _local(np.mean),
        "ndim": property(lambda x: x.shards[0].ndim),
        "item": lambda x: x.shards[0].item(),
        "size": lambda x, dim=None: Size(x.shape) if dim is None else x.shape[dim],
    }
    for symbol in ("add", "sub", "mul", "truediv", "matmul", "pow"):
        function = getattr(operator, symbol)
        local |= {f"__{symbol}__": _local(function), f"__r{symbol}__": _local(_swapped(function))}
    for name, method in local.items():
        setattr(LocalTensor, name, method)


__all__ = ["FUNCTIONS", "cast", "cat", "concat", "install", "lifted"]
