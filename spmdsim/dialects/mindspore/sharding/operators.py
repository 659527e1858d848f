"""MindSpore's operators by name: which of our operators each one is, and what it adds to the rule.

A row only translates names and attributes; device matrices, maps, collectives and gradients follow from our
operator's rule. Restrictions of the originals that a rule does not have stand beside it. Source of the names and
restrictions: ``mindspore/ccsrc/frontend/parallel/ops_info/*_info.cc``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from spmdsim.dialects.mindspore.sharding.errors import ShardError
from spmdsim.ops.reduce import normal_dims
from spmdsim.tensor.operator import Op

Shape = tuple[int, ...]
Params = dict[str, Any]
Attrs = Mapping[str, Any]
#: Our parameters from the operands' shapes and MindSpore's attributes.
ToParams = Callable[[Sequence[Shape], Attrs], Params]


def _none(_shapes: Sequence[Shape], _attrs: Attrs) -> Params:
    return {}


@dataclass(frozen=True)
class Operator:
    """A row of the table.

    Attributes:
        op: our operator.
        params: its parameters from MindSpore's attributes.
        also: further results, each an operator on the first operand with its parameters (LayerNorm's mean).
        out_strategy: ``"no"`` if one is refused, ``"same"`` if only the computed one is accepted,
            ``"product"`` for a MatMul's choice of all_reduce or reduce_scatter.
        of_result: the cuts given are those of the result (OneHot).
        mean: the summed result is divided by the number of elements (ReduceMean).
        first_dim: results of which MindSpore keeps the map of the first dim only.
        loss: which result ``_VirtualDiv`` looks at.
        gathers: the global shape of a result that is not split at all (a Reshape by itself).
        adjust: the cuts really meant, from those given and the shapes.
        first_only: further operands have no strategy and are whole (the mask of a DropoutDoMask, the values of a
            OneHot).
    """

    op: Op
    params: ToParams = _none
    also: Callable[[Sequence[Shape], Attrs], list[tuple[Op, Params]]] = field(default=lambda _s, _a: [])
    out_strategy: str = "no"
    of_result: bool = False
    mean: bool = False
    first_dim: tuple[int, ...] = ()
    loss: int = 0
    gathers: Callable[[Sequence[Shape], Attrs], Shape] | None = None
    adjust: Callable[[Any, Sequence[Shape]], Any] = lambda cuts, _shapes: cuts
    first_only: bool = False


ELEMENTWISE = {
    "Add": "add", "AddV2": "add", "TensorAdd": "add", "Sub": "subtract", "Mul": "multiply", "Div": "divide",
    "RealDiv": "divide", "DivNoNan": "divide", "FloorDiv": "floor_divide", "Mod": "remainder",
    "FloorMod": "remainder", "Pow": "power", "Maximum": "maximum", "Minimum": "minimum", "Equal": "equal",
    "NotEqual": "not_equal", "Greater": "greater", "GreaterEqual": "greater_equal", "Less": "less",
    "LessEqual": "less_equal", "LogicalAnd": "logical_and", "LogicalOr": "logical_or",
    "SquaredDifference": "squared_difference", "Atan2": "arctan2",
    "ReLU": "relu", "ReLU6": "relu6", "GeLU": "gelu", "FastGeLU": "gelu", "Tanh": "tanh", "Sigmoid": "sigmoid",
    "SiLU": "silu", "Elu": "elu", "Softplus": "softplus", "Exp": "exp", "Expm1": "expm1", "Log": "log",
    "Log1p": "log1p", "Sqrt": "sqrt", "Rsqrt": "rsqrt", "Square": "square", "Reciprocal": "reciprocal", "Inv": "reciprocal",
    "Neg": "negative", "Abs": "absolute", "Sign": "sign", "Floor": "floor", "Ceil": "ceil", "Round": "rint", "Rint": "rint",
    "Sin": "sin", "Cos": "cos", "LogicalNot": "logical_not", "Identity": "identity", "OnesLike": "identity",
    "ZerosLike": "identity", "Dropout": "identity", "TmpIdentity": "identity", "_TmpIdentity": "identity",
    "StopGradient": "identity", "Activation": "relu", "AssignSub": "subtract", "AssignAdd": "add", "Select": "where", "AddN": "add_n",
}  # fmt: skip

REDUCTIONS = {
    "ReduceSum": "sum", "ReduceMean": "sum", "ReduceMax": "max", "ReduceMin": "min", "ReduceProd": "prod",
    "ReduceAll": "all", "ReduceAny": "any", "SumExt": "sum", "MeanExt": "sum", "ProdExt": "prod",
}  # fmt: skip

#: Operators without a rule of their own: data parallel over dim 0 (batch_parallel_info.cc).
BATCH_PARALLEL = (
    "Flatten",
    "BatchParallel",
    "Unique",
    "ResizeBilinear",
    "ResizeNearestNeighbor",
)

#: Sources of data, whose dims stand for themselves; repeated calculation on the left.
DATA = ("VirtualDataset", "_VirtualDataset", "GetNext")


def _op(name: str) -> Op:
    import spmdsim.ops as ops

    return getattr(ops, name).op


def _dims(attrs: Attrs, ndim: int, default: Any = None) -> tuple[int, ...]:
    """MindSpore's ``axis``: a number, several, or none at all for every dim."""
    axis = attrs.get("axis", attrs.get("dim", default))
    if axis is None or (not isinstance(axis, int) and not tuple(axis)):
        return tuple(range(ndim))
    return normal_dims(axis if isinstance(axis, int) else tuple(axis), ndim)


def _one_dim(attrs: Attrs, ndim: int, default: int) -> int:
    found = _dims(attrs, ndim, default)
    if len(found) != 1:
        raise ShardError(f"this operator takes one axis, but got {attrs.get('axis')}")
    return found[0]


def _transposes(_shapes: Sequence[Shape], attrs: Attrs) -> Params:
    return {name: True for name in ("transpose_a", "transpose_b") if attrs.get(name)}


def _reduced(shapes: Sequence[Shape], attrs: Attrs) -> Params:
    keep = attrs.get("keep_dims", attrs.get("keepdim", False))
    return {"dims": _dims(attrs, len(shapes[0])), "keepdims": bool(keep)}


def _perm(shapes: Sequence[Shape], attrs: Attrs) -> Params:
    ndim = len(shapes[0])
    perm = tuple(attrs.get("perm", attrs.get("input_perm", range(ndim)[::-1])))
    if sorted(p % ndim if -ndim <= p < ndim else ndim for p in perm) != list(range(ndim)):
        raise ShardError(f"perm {perm} is not an order of the {ndim} dims")
    return {"perm": tuple(p % ndim for p in perm)}


def _norm_begin(shapes: Sequence[Shape], attrs: Attrs) -> Params:
    return {"epsilon": attrs.get("epsilon", 1e-7), "begin": int(attrs.get("begin_norm_axis", -1))}


def _norm_statistics(shapes: Sequence[Shape], attrs: Attrs) -> list[tuple[Op, Params]]:
    ndim = len(shapes[0])
    dims = tuple(range(int(attrs.get("begin_norm_axis", -1)) % ndim, ndim))
    statistic = (_op("sum"), {"dims": dims, "keepdims": True})
    return [statistic, statistic]


def _slopes(cuts: Any, shapes: Sequence[Shape]) -> Any:
    """PReLU's weight lies as its channel does, also where its cut is written as 1."""
    given = tuple(tuple(entry) for entry in cuts)
    whole = len(given) == 2 and len(shapes[0]) > 1 and given[1] == (1,) and shapes[1] != (1,)
    return (given[0], given[0][1:2]) if whole else given


def _one_hot(shapes: Sequence[Shape], attrs: Attrs) -> Params:
    if "depth" not in attrs:
        raise ShardError("OneHot needs the attribute depth")
    at = normal_dims(int(attrs.get("axis", -1)), len(shapes[0]) + 1)[0]
    return {"depth": int(attrs["depth"]), "dtype": np.dtype("f4"), "dim": at}


def _new_shape(shapes: Sequence[Shape], attrs: Attrs) -> Shape:
    from spmdsim.ops.shape import full_shape

    wanted = attrs.get("shape", attrs.get("dst_shape"))
    if wanted is None:
        raise ShardError("Reshape needs the attribute shape")
    return tuple(full_shape(shapes[0], wanted))


@cache
def table() -> dict[str, Operator]:
    """All rows, by MindSpore's name."""
    rows = {name: Operator(_op(ours)) for name, ours in ELEMENTWISE.items()}
    for name, ours in REDUCTIONS.items():
        rows[name] = Operator(_op(ours), _reduced, mean="Mean" in name)
    rows["Cast"] = Operator(_op("identity"))
    for name in ("MatMul", "BatchMatMul", "MatMulExt", "BatchMatMulExt"):
        rows[name] = Operator(_op("matmul"), _transposes, out_strategy="product")
    rows["BiasAdd"] = Operator(_op("bias_add"), lambda _s, _a: {"dim": 1})
    rows["PReLU"] = Operator(_op("prelu"), lambda _s, _a: {"dim": 1}, adjust=_slopes)
    rows["DropoutDoMask"] = Operator(_op("identity"), first_only=True)
    for name, ours in (("Softmax", "softmax"), ("LogSoftmax", "log_softmax")):
        rows[name] = Operator(_op(ours), lambda s, a: {"dim": _dims(a, len(s[0]), -1)})
    rows["L2Normalize"] = Operator(
        _op("l2_normalize"),
        lambda s, a: {"dim": _dims(a, len(s[0]), 0), "epsilon": a.get("epsilon", 1e-4)},
    )
    rows["LayerNorm"] = Operator(_op("layer_norm"), _norm_begin, _norm_statistics)
    rows["RmsNorm"] = Operator(_op("rms_norm"), lambda _s, a: {"epsilon": a.get("epsilon", 1e-6)})
    rows["Transpose"] = Operator(_op("transpose"), _perm, out_strategy="same")
    rows["Reshape"] = Operator(_op("identity"), gathers=_new_shape)
    rows["SoftmaxCrossEntropyWithLogits"] = Operator(_op("softmax_cross_entropy"), first_dim=(0,), loss=1)
    rows["OneHot"] = Operator(_op("one_hot"), _one_hot, of_result=True, first_only=True)
    for name, ours in (("Argmax", "argmax"), ("Argmin", "argmin")):
        rows[name] = Operator(_op(ours), lambda s, a: {"dim": _one_dim(a, len(s[0]), -1)})
    rows["Concat"] = Operator(_op("concat"), lambda s, a: {"dim": _one_dim(a, len(s[0]), 0)})
    return rows


def known() -> list[str]:
    """The names of all operators that have a strategy here."""
    return sorted([*table(), *BATCH_PARALLEL, *DATA, "Gather", "EmbeddingLookup"])


def find(name: str) -> Operator:
    """The row of an operator.

    Raises:
        RuntimeError: there is none; the message names the ones there are.
    """
    rows = table()
    if name not in rows:
        raise ShardError(f"no operator {name!r} is known here; there are {', '.join(known())}")
    return rows[name]
