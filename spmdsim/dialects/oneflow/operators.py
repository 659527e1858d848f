"""OneFlow's operators, one row each: functions, methods of tensors and layers are made from them.

``flow.softmax(x, -1)``, ``x.softmax(-1)``, ``nn.Softmax(-1)(x)``: operands must be on one placement.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import numpy as np

from spmdsim.arrays import Tensor as CoreTensor
from spmdsim.arrays import linalg
from spmdsim.arrays import ops as core
from spmdsim.core import Layout, Mesh
from spmdsim.dialects.functions import NETWORK, TORCH, extreme_row
from spmdsim.dialects.host import in_default_type
from spmdsim.dialects.oneflow.rank_agreement import report_different_code
from spmdsim.dialects.oneflow.sbp import TO_GLOBAL, OneFlowError
from spmdsim.dialects.oneflow.tensors import GlobalTensor, LocalTensor, check_one_placement
from spmdsim.dialects.session import is_recording
from spmdsim.dialects.table import Row, flat, map_nested, network_functions
from spmdsim.worlds import LockStep
from spmdsim.wrong_calls import explained


def lift_function(function: Callable[..., Any], name: str = "") -> Callable[..., GlobalTensor]:
    """Return ``function``, which takes spmdsim's tensors, as one that takes OneFlow's.

    The operands of a call, also in lists and tuples, decide what the call does:

    * global tensors of one placement: results are global on this placement. Float64 becomes float32 as in
      `in_default_type`;
    * local tensors: each rank computes alone, and results are local;
    * local and global tensors, several placements, or no tensor: OneFlowError.

    Other arguments are passed on. A call also raises OneFlowError if ranks seem to run different code.

    Args:
        function: the function of spmdsim's own tensors.
        name: the name in error messages; empty for the name of ``function``.
    """

    @wraps(function)
    def call(*operands: Any, **options: Any) -> Any:
        """Run the function on the operands' values."""
        values = flat([*operands, *options.values()])
        local = next((x for x in values if isinstance(x, LocalTensor)), None)
        global_tensors = [x for x in values if not isinstance(x, LocalTensor) and hasattr(x, "placement")]
        if local is not None and not global_tensors:
            return _run_locally(function, local, operands, options)
        if not global_tensors:
            types = ", ".join(type(x).__name__ for x in values) or "no operands"
            raise OneFlowError(
                f"{name or function.__name__}: an operand must be a tensor, got {types}; nearest: oneflow.tensor(x)"
            )
        if local is not None:
            raise OneFlowError(f"Expected global tensors, but got local ones; nearest: {TO_GLOBAL} before")
        check_one_placement(*(x.placement for x in global_tensors))
        with report_different_code():
            named = map_nested(options, _unwrap) if options else {}
            result = function(*[map_nested(x, _unwrap) for x in operands], **named)
            result = in_default_type(result, [_unwrap(x) for x in values])
            return map_nested(result, lambda x: _to_global(x, global_tensors[0].placement))

    return explained(call, name or function.__name__)


def _to_global(x: Any, placement: Any) -> Any:
    """Return one of spmdsim's own tensors as a global tensor on a placement.

    Pending reductions other than sums are reduced, because no sbp describes them. Inside ``no_grad`` the tensor has no
    history.
    """
    if not isinstance(x, CoreTensor):
        return x
    has_sbp = x.layout.reduce_op in (None, "sum")
    value = x if has_sbp else x.to(x.layout.reduced)
    return GlobalTensor(value if is_recording() else value.detach(), placement)


def _unwrap(x: Any) -> Any:
    """Return the value of a global tensor or parameter, a Python number for numpy's, else ``x``."""
    return x.value if hasattr(x, "placement") else x.item() if isinstance(x, np.number) else x


def _run_locally(function: Callable[..., Any], local: LocalTensor, operands: Any, options: Any) -> Any:
    """Run a function of spmdsim's tensors once per rank, each time on that rank's arrays alone.

    Each run is in a world of one rank. For example, for two ranks with the arrays a and b, the result of ``sum`` is one
    local tensor with the arrays ``sum(a)`` and ``sum(b)``.

    Args:
        function: the function.
        local: one of the operands, whose world and device type the results take.
        operands: tuple of positional arguments, with local tensors inside.
        options: dict of named arguments.

    Returns:
        The function's result, in which each tensor is a local tensor with one array per rank.
    """
    world, mesh = LockStep(1), Mesh((1,), ("rank",))

    def run_on(k: int) -> Any:
        """Run the function on the arrays of the k-th rank."""

        def value_of(x: Any) -> Any:
            if not isinstance(x, LocalTensor):
                return x
            return CoreTensor.from_global(x.shards[k], Layout.replicated(mesh, x.shards[k].ndim), world)

        return function(*map_nested(operands, value_of), **map_nested(options, value_of))

    results = [run_on(k) for k in range(len(local.shards))]
    # For each tensor of the result, its value on every rank.
    arrays = zip(*(flat([result]) for result in results))
    shards = ([x.full() for x in parts] for parts in arrays)
    return map_nested(results[0], lambda _: LocalTensor(next(shards), local.world, local.kind))


#: Functions and methods by OneFlow's names.
TABLE: dict[str, Row] = {
    **{name: row for name, row in TORCH.items() if name not in ("max", "min")},
    "cast": Row(core.cast),
    **{name: extreme_row(name, tied=True) for name in ("max", "min")},
}
#: Rows of functions for networks only.
NETWORK_TABLE = NETWORK | {"quick_gelu": Row(lambda input: core.gelu(input, "sigmoid"), "QuickGELU")}


def _like_method(name: str) -> Callable[..., GlobalTensor]:
    """Return a method that calls function ``name`` with the shape of another tensor."""
    return lambda input, other: FUNCTIONS[name](input, tuple(other.shape))


#: Methods with the names of types.
_TYPES = {"double": "f8", "float": "f4", "half": "f2", "int": "i4", "long": "i8", "bool": "?"}
#: Functions that are no methods, or have other methods of their name.
_NO_METHODS = ("cat", "concat", "einsum", "meshgrid", "stack", "where")

#: Functions by OneFlow's names.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: lift_function(row.call, name) for name, row in TABLE.items()
}
#: Methods of tensors.
METHODS: dict[str, Callable[..., Any]] = {
    **{name: call for name, call in FUNCTIONS.items() if name not in _NO_METHODS},
    **dict.fromkeys(("broadcast_like", "expand_as"), _like_method("expand")),
    **dict.fromkeys(("reshape_as", "view_as"), _like_method("reshape")),
    "clone": lift_function(core.identity),
    "contiguous": lambda x: x,
    "cpu": lambda x: x.to("cpu"),
    "cuda": lambda x: x.to("cuda"),
    **dict.fromkeys(("dim", "ndimension"), lambda x: x.ndim),
    **dict.fromkeys(("numel", "nelement"), lambda x: math.prod(x.shape)),
    "is_floating_point": lambda x: bool(x.dtype.is_floating_point),
    "size": lambda x, dim=None: x.shape if dim is None else x.shape[dim],
    "tolist": lambda x: x.numpy().tolist(),
    "detach": lift_function(lambda x: x.detach()),
    "is_nonzero": lambda x: bool(x.item()),
    "item": lambda x: x.value.item(),
    "repeat": FUNCTIONS["tile"],
    "type_as": lambda x, other: METHODS["cast"](x, other.dtype),
    "view": FUNCTIONS["reshape"],
    "where": lambda x, condition, other: FUNCTIONS["where"](condition, x, other),
    **{word: lift_function(partial(core.cast, dtype=np.dtype(kind)), word) for word, kind in _TYPES.items()},
}
cast, cat, concat = (FUNCTIONS[name] for name in ("cast", "cat", "concat"))

#: Functions of ``nn.functional``.
NETWORK_FUNCTIONS = network_functions(TABLE, NETWORK_TABLE, lift_function)
#: Functions of ``linalg``.
LINALG: dict[str, Callable[..., Any]] = {
    **{name: lift_function(getattr(linalg, name)) for name in ("cross", "det", "inv", "vector_norm")},
    "diagonal": explained(lambda A, *, offset=0, dim1=-2, dim2=-1: FUNCTIONS["diagonal"](A, offset, dim1, dim2), "diagonal"),
    "norm": FUNCTIONS["norm"],
}  # fmt: skip
