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
from spmdsim.core import Layout, Mesh
from spmdsim.dialects.oneflow.agreement import same_code
from spmdsim.dialects.oneflow.local import GlobalTensor, LocalTensor
from spmdsim.dialects.oneflow.sbp import OneFlowError
from spmdsim.dialects.table import Row, same
from spmdsim.nn import mse_loss
from spmdsim.nn.losses import reduced
from spmdsim.tensor import Tensor as CoreTensor
from spmdsim.worlds import LockStep


def lifted(function: Callable[..., Any]) -> Callable[..., GlobalTensor]:
    """Our function of tensors as one of global tensors, which must be on one placement, or of each rank's local ones.

    Raises:
        RuntimeError: two placements, or a local tensor beside a global one.
    """

    @wraps(function)
    def call(*operands: Any, **options: Any) -> Any:
        given = (*operands, *options.values())
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
            values = [_value(x) for x in operands]
            named = {name: _value(x) for name, x in options.items()}
            return GlobalTensor(function(*values, **named), placements[0])

    return call


def _value(x: Any) -> Any:
    return x.value if hasattr(x, "placement") else x


def locally(function: Callable[..., Any], local: LocalTensor, operands: Any, options: Any) -> Any:
    """Our function of each rank's own arrays: what it gives in a world of one rank."""
    alone = LockStep(1)

    def of(x: Any, k: int) -> Any:
        if not isinstance(x, LocalTensor):
            return x
        shard = x.shards[k]
        return CoreTensor.from_global(shard, Layout.replicated(Mesh((1,), ("rank",)), shard.ndim), alone)

    found = [
        function(*[of(x, k) for x in operands], **{name: of(x, k) for name, x in options.items()}).full()
        for k in range(len(local.shards))
    ]
    return LocalTensor(found, local.world, local.kind)


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


def _clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    x = x if min is None else core.maximum(x, min)
    return x if max is None else core.minimum(x, max)


def _gelu(x: Any, approximate: str = "none") -> Any:
    if approximate not in ("none", "tanh"):
        raise OneFlowError("the approximate argument should be 'none' or 'tanh'")
    return core.gelu(x, approximate)


def _spread_out(function: Callable[..., Any]) -> Row:
    """The mean squared distance from the mean, or its root; of a sample, so that one less is divided by."""

    def call(x: Any, dim: Any = None, unbiased: bool = True, keepdim: bool = False) -> Any:
        return function(x, dim, keepdims=keepdim, correction=int(unbiased))

    return Row(call)


def _t(x: Any) -> Any:
    if x.ndim > 2:
        raise OneFlowError(f"t() expects a tensor with <= 2 dimensions, but input tensor is {x.ndim}D")
    return core.transpose(x, list(range(x.ndim))[::-1])


def _cross_entropy(logits: Any, labels: Any, reduction: str = "mean") -> Any:
    return reduced(core.cross_entropy(logits, labels, "none"), reduction)


#: Functions and methods by OneFlow's names.
TABLE: dict[str, Row] = {
    **same(
        core,
        "abs=absolute add bmm=matmul cast ceil cos div=divide eq=equal erf exp floor gt=greater log log_softmax "
        "ge=greater_equal le=less_equal log1p logical_and logical_not logical_or lt=less matmul maximum minimum mm=matmul "
        "mul=multiply ne=not_equal neg=negative negative pow=power reciprocal relu:ReLU rsqrt sigmoid:Sigmoid expm1 "
        "sign silu:SiLU sin softmax:Softmax sqrt square sub=subtract tanh:Tanh where",
    ),
    "amax": _reduction(core.max),
    "amin": _reduction(core.min),
    "argmax": Row(lambda x, dim=None: core.argmax(x, dim)),
    "argmin": Row(lambda x, dim=None: core.argmin(x, dim)),
    "clamp": Row(_clamp),
    "clip": Row(_clamp),
    "flatten": Row(_flatten, "Flatten", {"start_dim": 1}),
    "gelu": Row(_gelu, "GELU"),
    "mean": _reduction(core.mean),
    "permute": Row(lambda x, *dims: core.transpose(x, _numbers(dims))),
    "prod": _reduction(core.prod),
    "reshape": Row(_reshape),
    "squeeze": Row(_squeeze),
    "std": _spread_out(core.std),
    "sum": _reduction(core.sum),
    "swapaxes": Row(_transpose),
    "swapdims": Row(_transpose),
    "t": Row(_t),
    "transpose": Row(_transpose),
    "unsqueeze": Row(_unsqueeze),
    "var": _spread_out(core.var),
}

#: Those that networks use only.
NETWORK_TABLE: dict[str, Row] = {
    "cross_entropy": Row(_cross_entropy, "CrossEntropyLoss"),
    "identity": Row(lambda x: x, "Identity"),
    "mse_loss": Row(mse_loss, "MSELoss"),
    "quick_gelu": Row(lambda x: core.gelu(x, "sigmoid"), "QuickGELU"),
}


def cat(tensors: Sequence[GlobalTensor], dim: int = 0) -> GlobalTensor:
    """Tensors one after the other."""
    return lifted(lambda *values: core.concat(values, dim))(*tensors)


def chunk(x: GlobalTensor, chunks: int, dim: int = 0) -> list[GlobalTensor]:
    """A tensor in so many parts of equal length, the last of which may be shorter."""
    size = x.shape[dim]
    if chunks < 1:
        raise OneFlowError(f"chunk expects at least 1 chunk, but got {chunks}")
    return split(x, max(1, -(-size // chunks)), dim)


def split(x: GlobalTensor, split_size_or_sections: int | Sequence[int], dim: int = 0) -> list[GlobalTensor]:
    """A tensor in parts of a length, or of several lengths.

    Raises:
        RuntimeError: lengths that are not the dim's together.
    """
    given, size, at = split_size_or_sections, x.shape[dim], dim % x.ndim
    if isinstance(given, int) and given < 1:
        raise OneFlowError(f"split expects parts of at least 1, but got {given}")
    sizes = [min(given, size - k) for k in range(0, size, given)] if isinstance(given, int) else list(given)
    if sum(sizes) != size:
        raise OneFlowError(
            f"split expects sizes that add up to {size}, the size of dim {dim}, but got {sizes}"
        )
    starts = [sum(sizes[:k]) for k in range(len(sizes))]
    return [x[(slice(None),) * at + (slice(a, a + n),)] for a, n in zip(starts, sizes)]


def stack(tensors: Sequence[GlobalTensor], dim: int = 0) -> GlobalTensor:
    """Tensors side by side along a new dim."""
    return cat([METHODS["unsqueeze"](x, dim) for x in tensors], dim)


def unbind(x: GlobalTensor, dim: int = 0) -> list[GlobalTensor]:
    """The parts along a dim, without it."""
    return [METHODS["squeeze"](part, dim) for part in split(x, 1, dim)]


def einsum(equation: str, *operands: GlobalTensor) -> GlobalTensor:
    """Sums of products, as the equation says."""
    return lifted(lambda *values: core.einsum(equation, *values))(*operands)


def _cast_to(kind: Any) -> Callable[..., GlobalTensor]:
    return lifted(lambda x: core.cast(x, np.dtype(kind)))


#: Methods of global tensors.
METHODS: dict[str, Callable[..., Any]] = {
    **{name: lifted(row.call) for name, row in TABLE.items()},
    "chunk": chunk,
    "clone": lifted(core.identity),
    "cpu": lambda x: x.to("cpu"),
    "cuda": lambda x: x.to("cuda"),
    "detach": lifted(lambda x: x.detach()),
    "item": lambda x: x.value.item(),
    "split": split,
    "type_as": lambda x, other: METHODS["cast"](x, other.dtype),
    "unbind": unbind,
    "view": lifted(_reshape),
    **{
        name: _cast_to(kind)
        for name, kind in (
            ("double", np.float64), ("float", np.float32), ("half", np.float16), ("int", np.int32), ("long", np.int64),
        )
    },
}  # fmt: skip
#: Functions of global tensors.
FUNCTIONS = {name: METHODS[name] for name in (*TABLE, "chunk", "split", "unbind")} | {
    "cat": cat, "concat": cat, "einsum": einsum, "stack": stack,
}  # fmt: skip
cast, concat = FUNCTIONS["cast"], cat

__all__ = ["FUNCTIONS", "METHODS", "NETWORK_TABLE", "TABLE", "cast", "cat", "concat", "lifted"]
