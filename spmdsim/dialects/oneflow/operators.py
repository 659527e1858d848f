"""OneFlow's operators: one row each, from which functions, methods of global tensors and layers are made.

``flow.softmax(x, -1)``, ``x.softmax(-1)``, ``nn.Softmax(-1)(x)``: operands must be on one placement.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

import spmdsim.ops as core
from spmdsim.core import Layout, Mesh
from spmdsim.dialects.functions import NETWORK, TORCH, extreme
from spmdsim.dialects.gradients import tracking
from spmdsim.dialects.host import in_default_type
from spmdsim.dialects.missing import told
from spmdsim.dialects.oneflow.agreement import same_code
from spmdsim.dialects.oneflow.local import GlobalTensor, LocalTensor
from spmdsim.dialects.oneflow.sbp import OneFlowError
from spmdsim.dialects.table import Row
from spmdsim.tensor import Tensor as CoreTensor
from spmdsim.worlds import LockStep


def lifted(function: Callable[..., Any], name: str = "") -> Callable[..., GlobalTensor]:
    """Our function of tensors as one of global tensors, which must be on one placement, or of each rank's local ones.

    Raises:
        RuntimeError: two placements, or a local tensor beside a global one.
    """

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
            return locally(function, local, operands, options)
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
        with same_code():
            values = [_each(x, _value) for x in operands]
            named = {name: _each(x, _value) for name, x in options.items()}
            result = in_default_type(function(*values, **named), [_value(x) for x in given])
            return _each(result, lambda x: _global(x, placements[0]))

    return told(call, name or function.__name__)


def _each(x: Any, change: Callable[[Any], Any]) -> Any:
    """Something, or every part of a list or tuple."""
    if not isinstance(x, list | tuple):
        return change(x)
    parts = [change(part) for part in x]
    return parts if isinstance(x, list) else _tuple_like(x, parts)


def _tuple_like(x: tuple[Any, ...], parts: list[Any]) -> tuple[Any, ...]:
    """Parts as a tuple of the same fields."""
    return type(x)(*parts) if hasattr(x, "_fields") else tuple(parts)


def _global(x: Any, placement: Any) -> Any:
    if not isinstance(x, CoreTensor):
        return x
    if x.layout.reduce_op not in (None, "sum"):  # no sbp says so
        x = x.to(x.layout.reduced)
    return GlobalTensor(x if tracking() else x.detach(), placement)


def _value(x: Any) -> Any:
    return x.value if hasattr(x, "placement") else x.item() if isinstance(x, np.number) else x


def locally(function: Callable[..., Any], local: LocalTensor, operands: Any, options: Any) -> Any:
    """Our function of each rank's own arrays: what it gives in a world of one rank."""
    alone = LockStep(1)

    def of(x: Any, k: int) -> Any:
        if not isinstance(x, LocalTensor):
            return x
        shard = x.shards[k]
        return CoreTensor.from_global(shard, Layout.replicated(Mesh((1,), ("rank",)), shard.ndim), alone)

    def on(k: int) -> Any:
        given = [_each(x, lambda part: of(part, k)) for x in operands]
        named = {name: _each(x, lambda part: of(part, k)) for name, x in options.items()}
        return function(*given, **named)

    results = [on(k) for k in range(len(local.shards))]
    if not isinstance(results[0], list | tuple):
        return LocalTensor([x.full() for x in results], local.world, local.kind)
    parts = [LocalTensor([x.full() for x in part], local.world, local.kind) for part in zip(*results)]
    return parts if isinstance(results[0], list) else _tuple_like(results[0], parts)


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


#: Functions that are no methods, or other ones.
_NO_METHODS = ("cat", "concat", "einsum", "meshgrid", "stack", "where")
_LIKE = {"reshape": "reshape_as view_as", "expand": "expand_as broadcast_like"}

#: Functions by OneFlow's names.
FUNCTIONS: dict[str, Callable[..., Any]] = {name: lifted(row.call, name) for name, row in TABLE.items()}
#: Methods of global tensors.
METHODS: dict[str, Callable[..., Any]] = {
    **{name: call for name, call in FUNCTIONS.items() if name not in _NO_METHODS},
    **{
        name: lambda input, other, like=like: FUNCTIONS[like](input, tuple(other.shape))
        for like, names in _LIKE.items()
        for name in names.split()
    },
    "clone": lifted(core.identity),
    "contiguous": lambda x: x,
    "cpu": lambda x: x.to("cpu"),
    "cuda": lambda x: x.to("cuda"),
    "detach": lifted(lambda x: x.detach()),
    "is_nonzero": lambda x: bool(x.item()),
    "item": lambda x: x.value.item(),
    "repeat": FUNCTIONS["tile"],
    "tolist": lambda x: x.numpy().tolist(),
    "type_as": lambda x, other: METHODS["cast"](x, other.dtype),
    "view": FUNCTIONS["reshape"],
    "where": lambda x, condition, other: FUNCTIONS["where"](condition, x, other),
    **{
        name: _cast_to(kind)
        for name, kind in (
            ("double", np.float64), ("float", np.float32), ("half", np.float16), ("int", np.int32), ("long", np.int64),
            ("bool", np.bool_),
        )
    },
}  # fmt: skip
cast, cat, concat = (FUNCTIONS[name] for name in ("cast", "cat", "concat"))

__all__ = ["FUNCTIONS", "METHODS", "NETWORK_TABLE", "TABLE", "cast", "cat", "concat", "lifted"]
