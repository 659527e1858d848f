"""OneFlow's operators: one row each, from which functions, methods of tensors and layers are made.

``flow.softmax(x, -1)``, ``x.softmax(-1)``, ``nn.Softmax(-1)(x)``: operands must be on one placement.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

import spmdsim.ops as core
from spmdsim import linalg
from spmdsim.core import Layout, Mesh
from spmdsim.dialects.functions import NETWORK, TORCH, extreme
from spmdsim.dialects.host import in_default_type
from spmdsim.dialects.missing import told
from spmdsim.dialects.oneflow.sbp import OneFlowError
from spmdsim.dialects.oneflow.tensors import GlobalTensor, LocalTensor, agreement
from spmdsim.dialects.session import tracking
from spmdsim.dialects.table import Row
from spmdsim.tensor import Tensor as CoreTensor
from spmdsim.worlds import LockStep


def lifted(function: Callable[..., Any], name: str = "") -> Callable[..., GlobalTensor]:
    """Our function of tensors as one of global tensors, which must be on one placement, or of each rank's local ones."""

    @wraps(function)
    def call(*operands: Any, **options: Any) -> Any:
        given = [
            x for y in (*operands, *options.values()) for x in (y if isinstance(y, list | tuple) else [y])
        ]
        placements = [
            x.placement for x in given if not isinstance(x, LocalTensor) and hasattr(x, "placement")
        ]
        local = next((x for x in given if isinstance(x, LocalTensor)), None)
        if local is not None and not placements:
            return _locally(function, local, operands, options)
        if local is not None or not placements:
            raise OneFlowError(
                "Expected global tensors, but got local ones; nearest: x.to_global(placement, sbp) before"
            )
        for other in placements[1:]:
            if other != placements[0]:
                raise OneFlowError(
                    "Expected all tensors to be on the same placement, but found at least two placements, "
                    f"{placements[0]} and {other}!"
                )
        with agreement.same_code():
            values = [_each(x, _value) for x in operands]
            named = {name: _each(x, _value) for name, x in options.items()}
            result = in_default_type(function(*values, **named), [_value(x) for x in given])
            return _each(result, lambda x: _global(x, placements[0]))

    return told(call, name or function.__name__)


def _each(x: Any, change: Callable[[Any], Any]) -> Any:
    """Something, or every part of a list or tuple."""
    return _like(x, [change(part) for part in x]) if isinstance(x, list | tuple) else change(x)


def _like(x: Any, parts: list[Any]) -> Any:
    """Parts as a list, or as a tuple of the same fields."""
    if isinstance(x, list):
        return parts
    return type(x)(*parts) if hasattr(x, "_fields") else tuple(parts)


def _global(x: Any, placement: Any) -> Any:
    if not isinstance(x, CoreTensor):
        return x
    if x.layout.reduce_op not in (None, "sum"):  # no sbp says so
        x = x.to(x.layout.reduced)
    return GlobalTensor(x if tracking() else x.detach(), placement)


def _value(x: Any) -> Any:
    return x.value if hasattr(x, "placement") else x.item() if isinstance(x, np.number) else x


def _locally(function: Callable[..., Any], local: LocalTensor, operands: Any, options: Any) -> Any:
    """Our function of each rank's own arrays: what it gives in a world of one rank."""
    alone, mesh = LockStep(1), Mesh((1,), ("rank",))

    def on(k: int) -> Any:
        def of(x: Any) -> Any:
            if not isinstance(x, LocalTensor):
                return x
            shard = x.shards[k]
            return CoreTensor.from_global(shard, Layout.replicated(mesh, shard.ndim), alone)

        return function(
            *(_each(x, of) for x in operands), **{name: _each(x, of) for name, x in options.items()}
        )

    def together(values: Any) -> LocalTensor:
        return LocalTensor([x.full() for x in values], local.world, local.kind)

    results = [on(k) for k in range(len(local.shards))]
    if not isinstance(results[0], list | tuple):
        return together(results)
    return _like(results[0], [together(values) for values in zip(*results)])


#: Functions and methods by OneFlow's names.
TABLE: dict[str, Row] = {
    **{name: row for name, row in TORCH.items() if name not in ("max", "min")},
    "cast": Row(core.cast),
    "max": extreme("max", tied=True),
    "min": extreme("min", tied=True),
}
#: Those that networks use only.
NETWORK_TABLE: dict[str, Row] = {
    **NETWORK,
    "quick_gelu": Row(lambda input: core.gelu(input, "sigmoid"), "QuickGELU"),
}


def _cast_to(kind: Any) -> Callable[..., GlobalTensor]:
    return lifted(lambda x: core.cast(x, np.dtype(kind)))


def _shaped_like(name: str) -> Callable[..., GlobalTensor]:
    return lambda input, other: FUNCTIONS[name](input, tuple(other.shape))


#: Functions that are no methods, or other ones.
_NO_METHODS = ("cat", "concat", "einsum", "meshgrid", "stack", "where")

#: Functions by OneFlow's names.
FUNCTIONS: dict[str, Callable[..., Any]] = {name: lifted(row.call, name) for name, row in TABLE.items()}
#: Methods of tensors.
METHODS: dict[str, Callable[..., Any]] = {
    **{name: call for name, call in FUNCTIONS.items() if name not in _NO_METHODS},
    "broadcast_like": _shaped_like("expand"),
    "clone": lifted(core.identity),
    "contiguous": lambda x: x,
    "cpu": lambda x: x.to("cpu"),
    "cuda": lambda x: x.to("cuda"),
    "dim": lambda x: x.ndim,
    "ndimension": lambda x: x.ndim,
    "numel": lambda x: math.prod(x.shape),
    "nelement": lambda x: math.prod(x.shape),
    "is_floating_point": lambda x: bool(x.dtype.is_floating_point),
    "size": lambda x, dim=None: x.shape if dim is None else x.shape[dim],
    "tolist": lambda x: x.numpy().tolist(),
    "detach": lifted(lambda x: x.detach()),
    "expand_as": _shaped_like("expand"),
    "is_nonzero": lambda x: bool(x.item()),
    "item": lambda x: x.value.item(),
    "repeat": FUNCTIONS["tile"],
    "reshape_as": _shaped_like("reshape"),
    "type_as": lambda x, other: METHODS["cast"](x, other.dtype),
    "view": FUNCTIONS["reshape"],
    "view_as": _shaped_like("reshape"),
    "where": lambda x, condition, other: FUNCTIONS["where"](condition, x, other),
    "double": _cast_to(np.float64),
    "float": _cast_to(np.float32),
    "half": _cast_to(np.float16),
    "int": _cast_to(np.int32),
    "long": _cast_to(np.int64),
    "bool": _cast_to(np.bool_),
}
cast, cat, concat = (FUNCTIONS[name] for name in ("cast", "cat", "concat"))

_FUNCTIONAL = {*NETWORK_TABLE, "log_softmax", *(name for name, row in TABLE.items() if row.layer)}
#: Functions of ``nn.functional``: those of networks, those that have a layer, and log_softmax.
NETWORK_FUNCTIONS = {
    name: lifted({**TABLE, **NETWORK_TABLE}[name].call, name) for name in sorted(_FUNCTIONAL)
}


def _diagonal(A: GlobalTensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    return FUNCTIONS["diagonal"](A, offset, dim1, dim2)


#: Functions of ``linalg``.
LINALG: dict[str, Callable[..., Any]] = {
    **{name: lifted(getattr(linalg, name)) for name in ("cross", "det", "inv", "vector_norm")},
    "diagonal": told(_diagonal, "diagonal"),
    "norm": FUNCTIONS["norm"],
}

__all__ = [
    "FUNCTIONS",
    "LINALG",
    "METHODS",
    "NETWORK_FUNCTIONS",
    "NETWORK_TABLE",
    "TABLE",
    "cast",
    "cat",
    "concat",
    "lifted",
]
