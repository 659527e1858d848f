"""Paddle's operators: one row each, from which functions and layers are made; arrays are whole on every rank."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

import spmdsim.ops as core
from spmdsim.dialects.paddle.static import everywhere
from spmdsim.dialects.table import Row, same
from spmdsim.tensor import Tensor


def lifted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Our function, with arrays among its operands taken as whole ones."""

    @wraps(function)
    def call(*operands: Any, name: str | None = None, **options: Any) -> Any:
        mesh = next((x.layout.mesh for x in operands if isinstance(x, Tensor)), None)
        return function(
            *(everywhere(x, mesh) if isinstance(x, np.ndarray) else x for x in operands), **options
        )

    return call


def _reduction(function: Callable[..., Any]) -> Row:
    return Row(lambda x, axis=None, keepdim=False: function(x, axis, keepdims=keepdim))


def _flatten(x: Any, start_axis: int = 0, stop_axis: int = -1) -> Any:
    start, stop = start_axis % x.ndim, stop_axis % x.ndim
    return core.reshape(x, (*x.shape[:start], math.prod(x.shape[start : stop + 1]), *x.shape[stop + 1 :]))


def _matmul(x: Any, y: Any, transpose_x: bool = False, transpose_y: bool = False) -> Any:
    return core.matmul(x, y, transpose_a=transpose_x, transpose_b=transpose_y)


def _cross_entropy(input: Any, label: Any, reduction: str = "mean") -> Any:
    labels = core.reshape(label, label.shape[:-1]) if label.ndim == input.ndim else label
    return core.cross_entropy(input, labels, reduction)


#: By Paddle's names.
TABLE: dict[str, Row] = {
    **same(
        core,
        "abs=absolute add cast divide exp gelu:GELU log maximum minimum multiply pow=power relu:ReLU rsqrt "
        "sigmoid:Sigmoid silu:Silu sqrt square subtract tanh:Tanh where",
    ),
    "argmax": Row(lambda x, axis=None: core.argmax(x, axis)),
    "flatten": Row(_flatten),
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
NETWORK_TABLE = {"cross_entropy": Row(_cross_entropy, "CrossEntropyLoss")}


def concat(x: Sequence[Any], axis: int = 0, name: str | None = None) -> Any:
    """Tensors one after the other."""
    return lifted(lambda *values: core.concat(values, axis))(*x)


FUNCTIONS: dict[str, Callable[..., Any]] = {name: lifted(row.call) for name, row in TABLE.items()}
FUNCTIONS["concat"] = concat
