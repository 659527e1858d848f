"""OneFlow's operators by name: which of our operators each one is, and which rows of its rule OneFlow leaves out.

Names, operands and restrictions: ``oneflow/user/ops/*.cpp``. The rows themselves are derived; see
:mod:`spmdsim.dialects.imitations.oneflow.signatures`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from inspect import unwrap
from typing import Any

import numpy as np

from spmdsim.arrays import Op, ops
from spmdsim.arrays.ops.dim_reductions import normal_dims
from spmdsim.arrays.ops.shape import full_shape
from spmdsim.arrays.ops.windowed import in_blocks
from spmdsim.core import BoundRule, Rule
from spmdsim.dialects.imitations.oneflow.boxing_rules import Shape, broadcast_only
from spmdsim.dialects.oneflow.operators import TABLE
from spmdsim.dialects.oneflow.sbp import OneFlowError
from spmdsim.dialects.table import same

Params = dict[str, Any]
Attrs = Mapping[str, Any]


@dataclass(frozen=True)
class SignatureRow:
    """An operator of OneFlow's.

    Attributes:
        inputs: names of its operands, in our order (the last one may repeat).
        params: our parameters from the shapes and OneFlow's attributes.
        partial: whether rows with pending operands are listed.
        whole: operands that are only ever broadcast.
        even: whether unequal parts are left out on several mesh axes (reshape).
        shapes: shapes that our rule takes, from those given and OneFlow's attributes.
        unsplit: whether shapes and attributes leave the row with everything broadcast only.
    """

    op: Op
    inputs: tuple[str, ...] = ("x",)
    outputs: tuple[str, ...] = ("y",)
    params: Callable[[Sequence[Shape], Attrs], Params] = lambda _shapes, _attrs: {}
    partial: bool = True
    whole: tuple[int, ...] = ()
    even: bool = False
    shapes: Callable[[Sequence[Shape], Attrs], Sequence[Shape]] = lambda shapes, _attrs: shapes
    unsplit: Callable[[Sequence[Shape], Attrs], bool] = lambda _shapes, _attrs: False

    def bind(self, shapes: Sequence[Shape], attrs: Attrs) -> BoundRule:
        """Our operator's rule for operands of these shapes."""
        fitting = [tuple(shape) for shape in self.shapes(shapes, attrs)]
        return in_blocks(self.op.bind(fitting, self.params(fitting, attrs)))

    def names(self, count: int) -> tuple[str, ...]:
        """Names of ``count`` operands."""
        if count <= len(self.inputs):
            return self.inputs[:count]
        return tuple(f"{self.inputs[0]}_{i}" for i in range(count))


#: Functions of one or two elements that programs have no function for, or by another name.
_ELEMENTWISE = same(
    ops,
    "elu gelu expm1 log1p reciprocal rint softplus negative identity logical_not equal not_equal greater greater_equal less "
    "less_equal logical_and logical_or floordiv=floor_divide fmod=remainder atan2=arctan2",
)
#: Names of operands and results by the number of operands.
_NAMES = {1: (("x",), ("y",)), 2: (("x", "y"), ("z",))}
#: Functions of one element that have no operator of their own here; their rows are those of any such function.
_FUNCTIONS = (
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "bitwise_not", "celu", "clip_by_scalar", "cosh", "erfc",
    "dropout", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "lgamma", "log2", "log10",
    "log_sigmoid", "mish", "quick_gelu", "reciprocal_no_nan", "round", "scalar_add", "scalar_pow", "selu", "sinh",
    "softshrink", "softsign", "square_relu", "tan", "threshold", "trunc",
)  # fmt: skip
_REDUCE = {
    "reduce_sum": "sum", "reduce_mean": "sum", "reduce_max": "max", "reduce_min": "min", "reduce_prod": "prod",
    "reduce_any": "any", "reduce_all": "all",
}  # fmt: skip


def _op(function: Any) -> Any:
    return getattr(unwrap(function, stop=lambda inner: hasattr(inner, "op")), "op", None)


def _transposes(_shapes: Sequence[Shape], attrs: Attrs) -> Params:
    return {name: True for name in ("transpose_a", "transpose_b") if attrs.get(name)}


def _reduction(shapes: Sequence[Shape], attrs: Attrs) -> Params:
    axis = attrs.get("axis")
    dims = normal_dims(axis if axis is None or isinstance(axis, int) else tuple(axis), len(shapes[0]))
    return {"dims": dims, "keepdims": bool(attrs.get("keepdims", False))}


def _one_dim(name: str, default: int) -> Callable[[Sequence[Shape], Attrs], Params]:
    def params(shapes: Sequence[Shape], attrs: Attrs) -> Params:
        axis = attrs.get("axis", default)
        axis = -1 if axis == "last" else axis
        return {name: normal_dims(int(axis), len(shapes[0]))[0]}

    return params


def _fixed(**params: Any) -> Callable[[Sequence[Shape], Attrs], Params]:
    return lambda _shapes, _attrs: params


def _begin(shapes: Sequence[Shape], attrs: Attrs) -> Params:
    return {"epsilon": 1e-5, "begin": int(attrs.get("begin_norm_axis", -1))}


def _scaled(shapes: Sequence[Shape], attrs: Attrs) -> Sequence[Shape]:
    """Scale and shift as long as what is normalised: they are broadcast, whatever their own shape is."""
    x, begin = shapes[0], int(attrs.get("begin_norm_axis", -1)) % len(shapes[0])
    return [x, *(shape if len(shape) >= len(x) - begin else x[begin:] for shape in shapes[1:])]


def _window(shapes: Sequence[Shape], attrs: Attrs) -> Params:
    steps = attrs.get("step")
    if steps is not None and any(step != 1 for step in steps):
        raise OneFlowError(f"signatures of a slice are known for steps of 1, but got {tuple(steps)}")
    return {"start": tuple(attrs["start"]), "stop": tuple(attrs["stop"])}


@cache
def table() -> dict[str, SignatureRow]:
    """All rows, by OneFlow's name."""
    rows = {
        name: SignatureRow(op, *_NAMES[len(op.rule.inputs)])
        for name, op in ((name, _op(row.call)) for name, row in {**TABLE, **_ELEMENTWISE}.items())
        if op and isinstance(op.rule, Rule) and op.rule.text in ("... -> ...", "..., ... -> ...")
    }
    rows |= dict.fromkeys(_FUNCTIONS, rows["relu"])
    rows |= dict.fromkeys(("scalar_mul", "scalar_div"), rows["identity"])
    for name, ours in _REDUCE.items():
        rows[name] = SignatureRow(_op(getattr(ops, ours)), ("in",), ("out",), _reduction)
    for name in ("matmul", "batch_matmul", "broadcast_matmul"):
        rows[name] = SignatureRow(_op(ops.matmul), ("a", "b"), ("out",), _transposes)
    for name in ("softmax", "log_softmax", "argmax"):
        rows[name] = SignatureRow(_op(getattr(ops, name)), ("in",), ("out",), _one_dim("dim", -1))
    return rows | {
        "broadcast_matmul_grad_b": SignatureRow(_op(ops.einsum), ("a", "b"), ("out",), _fixed(equation="...k,...n->kn"), False),
        "bias_add": SignatureRow(_op(ops.bias_add), ("a", "b"), ("out",), _one_dim("dim", 1), False),
        "add_n": SignatureRow(_op(ops.add_n), ("in",), ("out",)),
        "cast": SignatureRow(_op(ops.cast), params=_fixed(dtype=np.dtype("f4"))),
        "layer_norm": SignatureRow(_op(ops.layer_norm), ("x", "gamma", "beta"), ("y",), _begin, False, (1, 2), shapes=_scaled),
        "gather": SignatureRow(_op(ops.gather), ("in", "indices"), ("out",), _one_dim("dim", 0)),
        "embedding": SignatureRow(_op(ops.embedding), ("indices", "weight"), ("out",), partial=False, whole=(1,),
            unsplit=lambda _s, attrs: bool(attrs.get("scale_grad_by_freq"))),
        "sparse_softmax_cross_entropy": SignatureRow(
            _op(ops.sparse_softmax_cross_entropy), ("prediction", "label"), ("prob", "out"), partial=False),
        "one_hot": SignatureRow(_op(ops.one_hot),
            params=lambda _s, a: {"depth": int(a.get("depth", 8)), "dtype": np.dtype("f4"), "dim": -1}),
        "transpose": SignatureRow(_op(ops.transpose), params=lambda _s, a: {"perm": tuple(a["perm"])}),
        "reshape": SignatureRow(_op(ops.reshape), params=lambda s, a: {"shape": full_shape(s[0], a["shape"])}, even=True,
            unsplit=lambda s, _a: broadcast_only(s[0])),
        "expand": SignatureRow(_op(ops.broadcast_to), params=lambda _s, a: {"shape": tuple(a["shape"])}),
        "concat": SignatureRow(_op(ops.concat), ("in",), ("out",), _one_dim("dim", 0)),
        "slice": SignatureRow(_op(ops.window), params=_window),
        "slice_update": SignatureRow(_op(ops.slice_update), ("ref", "value"),
            params=lambda s, a: {**_window(s, a), "step": (1,) * len(s[0])}),
    }  # fmt: skip


def find(name: str) -> SignatureRow:
    """The row of an operator."""
    key = name.removeprefix("broadcast_") if name not in table() else name
    if key not in table():
        raise OneFlowError(
            f"no signatures are known for {name!r}; there are those of {', '.join(sorted(table()))}"
        )
    return table()[key]
