"""OneFlow's operators: one row each, from which functions, methods of global tensors and layers are made.

``flow.softmax(x, -1)``, ``x.softmax(-1)``, ``nn.Softmax(-1)(x)``: operands must be on one placement.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

import spmdsim.ops as core
from spmdsim.dialects.oneflow.agreement import same_code
from spmdsim.dialects.oneflow.local import GlobalTensor, LocalTensor
from spmdsim.dialects.oneflow.sbp import OneFlowError
from spmdsim.dialects.table import Row, same
from spmdsim.nn import mse_loss
from spmdsim.nn.losses import reduced


def lifted(function: Callable[..., Any]) -> Callable[..., GlobalTensor]:
    """Our function of tensors as one of global tensors, which must be on one placement.

    Raises:
        RuntimeError: two placements, or a local tensor among the operands.
    """

    @wraps(function)
    def call(*operands: Any, **options: Any) -> GlobalTensor:
        placements = [x.placement for x in operands if hasattr(x, "placement")]
        if any(isinstance(x, LocalTensor) for x in operands) or not placements:
            raise OneFlowError(
                "Expected global tensors, but got local ones; nearest: x.to_global(placement, sbp) before"
            )
        for other in placements[1:]:
            if other != placements[0]:
                raise OneFlowError(
                    "Expected all tensors to be on the same placement, but found at least two placements, "
                    f"{placements[0]} and {other}!"
                )
        with same_code():
            values = [x.value if hasattr(x, "placement") else x for x in operands]
            return GlobalTensor(function(*values, **options), placements[0])

    return call


def _reduction(function: Callable[..., Any]) -> Row:
    return Row(lambda x, dim=None, keepdim=False: function(x, dim, keepdims=keepdim))


def _numbers(given: tuple[Any, ...]) -> tuple[Any, ...]:
    """``f(2, 3)`` and ``f((2, 3))`` alike."""
    return tuple(given[0]) if len(given) == 1 and not isinstance(given[0], int) else given


def _reshape(x: Any, *shape: Any) -> Any:
    return core.reshape(x, _numbers(shape))


def _transpose(x: Any, dim0: int, dim1: int) -> Any:
    order = list(range(x.ndim))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return core.transpose(x, order)


def _unsqueeze(x: Any, dim: int) -> Any:
    at = dim % (x.ndim + 1)
    return core.reshape(x, (*x.shape[:at], 1, *x.shape[at:]))


def _squeeze(x: Any, dim: int | None = None) -> Any:
    gone = range(x.ndim) if dim is None else [dim % x.ndim]
    return core.reshape(x, [n for d, n in enumerate(x.shape) if d not in gone or n != 1])


def _flatten(x: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    start, end = start_dim % x.ndim, end_dim % x.ndim
    return core.reshape(x, (*x.shape[:start], math.prod(x.shape[start : end + 1]), *x.shape[end + 1 :]))


def _cross_entropy(logits: Any, labels: Any, reduction: str = "mean") -> Any:
    return reduced(core.cross_entropy(logits, labels, "none"), reduction)


#: Functions and methods by OneFlow's names.
TABLE: dict[str, Row] = {
    **same(
        core,
        "abs=absolute add bmm=matmul cast ceil cos div=divide eq=equal exp floor gelu:GELU gt=greater log log_softmax "
        "lt=less matmul maximum minimum mm=matmul mul=multiply neg=negative pow=power relu:ReLU rsqrt sigmoid:Sigmoid "
        "sign silu:SiLU sin softmax:Softmax sqrt square sub=subtract tanh:Tanh where",
    ),
    "amax": _reduction(core.max),
    "amin": _reduction(core.min),
    "argmax": Row(lambda x, dim=None: core.argmax(x, dim)),
    "flatten": Row(_flatten, "Flatten", {"start_dim": 1}),
    "mean": _reduction(core.mean),
    "permute": Row(lambda x, *dims: core.transpose(x, _numbers(dims))),
    "prod": _reduction(core.prod),
    "reshape": Row(_reshape),
    "squeeze": Row(_squeeze),
    "sum": _reduction(core.sum),
    "transpose": Row(_transpose),
    "unsqueeze": Row(_unsqueeze),
    "view": Row(_reshape),
}

#: Those that networks use only.
NETWORK_TABLE: dict[str, Row] = {
    "cross_entropy": Row(_cross_entropy, "CrossEntropyLoss"),
    "identity": Row(lambda x: x, "Identity"),
    "mse_loss": Row(mse_loss, "MSELoss"),
}


def cat(tensors: Sequence[GlobalTensor], dim: int = 0) -> GlobalTensor:
    """Tensors one after the other."""
    return lifted(lambda *values: core.concat(values, dim))(*tensors)


#: Methods of global tensors.
METHODS: dict[str, Callable[..., Any]] = {
    **{name: lifted(row.call) for name, row in TABLE.items()},
    "detach": lifted(lambda x: x.detach()),
    "dim": lambda x: x.value.ndim,
    "float": lifted(lambda x: core.cast(x, np.float32)),
    "item": lambda x: x.value.item(),
    "numel": lambda x: x.value.size,
}
#: Functions of global tensors.
FUNCTIONS = {name: METHODS[name] for name in TABLE} | {"cat": cat, "concat": cat}
cast, concat = FUNCTIONS["cast"], cat

__all__ = ["FUNCTIONS", "METHODS", "NETWORK_TABLE", "TABLE", "cast", "cat", "concat", "lifted"]
