"""Functions of tensors by Paddle's names, each one of our operators; arrays are whole on every rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import spmdsim.ops as core
from spmdsim.dialects.paddle.static import everywhere
from spmdsim.tensor import Tensor


def lifted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Our function, with arrays among its operands taken as whole ones."""

    def call(*operands: Any, **options: Any) -> Any:
        known = next((x for x in operands if isinstance(x, Tensor)), None)
        mesh = None if known is None else known.layout.mesh
        given = [everywhere(x, mesh) if isinstance(x, np.ndarray) else x for x in operands]
        options.pop("name", None)
        return function(*given, **options)

    return call


def _reduction(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, axis=None, keepdim=False: function(x, axis, keepdims=keepdim)


def _flatten(x: Any, start_axis: int = 0, stop_axis: int = -1) -> Any:
    start, stop = start_axis % x.ndim, stop_axis % x.ndim
    return core.reshape(x, (*x.shape[:start], math.prod(x.shape[start : stop + 1]), *x.shape[stop + 1 :]))


#: By Paddle's names.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{
        name: lifted(getattr(core, ours))
        for name, ours in {
            "abs": "absolute", "add": "add", "divide": "divide", "exp": "exp", "gelu": "gelu", "log": "log",
            "maximum": "maximum", "minimum": "minimum", "multiply": "multiply", "pow": "power", "relu": "relu",
            "rsqrt": "rsqrt", "sigmoid": "sigmoid", "silu": "silu", "sqrt": "sqrt", "square": "square",
            "subtract": "subtract", "tanh": "tanh", "where": "where",
        }.items()
    },
    "argmax": lifted(lambda x, axis=None: core.argmax(x, axis)),
    "cast": lifted(core.cast),
    "flatten": lifted(_flatten),
    "log_softmax": lifted(lambda x, axis=-1: core.log_softmax(x, axis)),
    "matmul": lifted(
        lambda x, y, transpose_x=False, transpose_y=False: core.matmul(
            x, y, transpose_a=transpose_x, transpose_b=transpose_y
        )
    ),
    "max": lifted(_reduction(core.max)),
    "mean": lifted(_reduction(core.mean)),
    "min": lifted(_reduction(core.min)),
    "reshape": lifted(lambda x, shape: core.reshape(x, shape)),
    "softmax": lifted(lambda x, axis=-1: core.softmax(x, axis)),
    "sum": lifted(_reduction(core.sum)),
    "transpose": lifted(lambda x, perm: core.transpose(x, perm)),
}  # fmt: skip


def concat(x: Sequence[Any], axis: int = 0) -> Any:
    """Tensors one after the other."""
    return lifted(lambda *values: core.concat(values, axis))(*x)


FUNCTIONS["concat"] = concat
