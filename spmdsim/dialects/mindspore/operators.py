"""MindSpore's operators, one row each: our operator, names and arguments, and special rules.

Device matrices, maps, collectives and gradients follow from our operator's rule. Restrictions of the originals that a
rule does not have are in its row. Source of names and restrictions:
``mindspore/ccsrc/frontend/parallel/ops_info/*_info.cc``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from spmdsim.arrays import Op, Tensor, ops
from spmdsim.arrays.ops.dim_reductions import normalise_dims
from spmdsim.arrays.ops.shape import resolve_shape
from spmdsim.dialects.mindspore import collectives
from spmdsim.dialects.mindspore.collectives import make_run
from spmdsim.dialects.mindspore.communication import HCCL_WORLD_COMM_GROUP as WORLD
from spmdsim.dialects.mindspore.parameter import next_seed
from spmdsim.dialects.mindspore.table import Attrs, OperatorRow, Params, Shape, ShardError, ToParams
from spmdsim.dialects.missing import refuse
from spmdsim.errors import InputError, UsageTypeError, many, unknown
from spmdsim.wrong_calls import is_whole_number

if TYPE_CHECKING:
    from spmdsim.dialects.mindspore.primitive import Primitive

Operands = Sequence[Any]
Shapes = Sequence[Shape]
#: Function of a primitive, operands and attributes that runs a call.
Run = Callable[["Primitive", list[Any], Params], Any]

# -- our parameters from MindSpore's ------------------------------------------------------------------------------


def _read_dims(attrs: Attrs, ndim: int, default: Any = None) -> tuple[int, ...]:
    """Return the attribute ``axis``, or ``dim``, as sorted dims >= 0; None and ``()`` are all dims.

    Args:
        attrs: attributes of the call.
        ndim: number of dims of the operand.
        default: value for a call without the attribute.
    """
    axis = attrs.get("axis", attrs.get("dim", default))
    axis = axis if axis is None or isinstance(axis, int) else tuple(axis)
    return normalise_dims(None if axis == () else axis, ndim)


def _dims_param(default: int) -> ToParams:
    """Return the ``params`` of rows along dims: attribute ``axis`` becomes parameter ``dim``."""
    return lambda shapes, attrs: {"dim": _read_dims(attrs, len(shapes[0]), default)}


def _dim_param(default: int) -> ToParams:
    """Return a function that converts a call's attribute ``axis`` to ``{"dim": n}`` with n >= 0.

    Rows of the table of operators use it as their ``params``. The function raises ShardError for several dims.
    """

    def params(shapes: Shapes, attrs: Attrs) -> Params:
        dims = _read_dims(attrs, len(shapes[0]), default)
        if len(dims) != 1:
            raise ShardError(f"axis must be one dim for this operator, got {attrs.get('axis')}")
        return {"dim": dims[0]}

    return params


def _reduction_params(shapes: Shapes, attrs: Attrs) -> Params:
    """Return the parameters of a reduction: ``dims`` and ``keepdims``."""
    keep = attrs.get("keep_dims", attrs.get("keepdim", attrs.get("keepdims", False)))
    return {"dims": _read_dims(attrs, len(shapes[0])), "keepdims": bool(keep)}


def _transpose_params(shapes: Shapes, attrs: Attrs) -> Params:
    """Return ``{"perm": order of the dims}`` of a Transpose, with dims >= 0."""
    ndim = len(shapes[0])
    perm = tuple(attrs.get("perm", attrs.get("input_perm", range(ndim)[::-1])))
    in_range = all(-ndim <= dim < ndim for dim in perm)
    if not in_range or sorted(dim % ndim for dim in perm) != list(range(ndim)):
        raise ShardError(f"perm must name each of the {many(ndim, 'dim')} 0..{ndim - 1} once, got {perm}")
    return {"perm": tuple(dim % ndim for dim in perm)}


def _norm_sums(shapes: Shapes, attrs: Attrs) -> list[tuple[Op, Params]]:
    """Return two sums over the normalised dims, for LayerNorm's mean and variance."""
    ndim = len(shapes[0])
    dims = tuple(range(int(attrs.get("begin_norm_axis", -1)) % ndim, ndim))
    return [(ops.sum.op, {"dims": dims, "keepdims": True})] * 2


def _adjust_prelu_cuts(cuts: Any, shapes: Shapes) -> Any:
    """Return the cuts of a PReLU with the weight cut like the channels, dim 1 of operand 0.

    This holds even if the strategy writes 1 for the weight, as in MindSpore. Other cuts stay as they are.
    """
    entries = tuple(tuple(entry) for entry in cuts)
    by_channel = len(entries) == 2 and len(shapes[0]) > 1 and entries[1] == (1,) and shapes[1] != (1,)
    return (entries[0], entries[0][1:2]) if by_channel else entries


def _one_hot_params(shapes: Shapes, attrs: Attrs) -> Params:
    """Return ``depth``, ``dtype`` (float32) and ``dim`` of a OneHot, by name.

    ``dim`` is the new dim of the result, from 0. Raises ShardError if the attribute ``depth`` is missing.
    """
    if "depth" not in attrs:
        raise ShardError("OneHot: attribute depth must be given, got none")
    at = normalise_dims(int(attrs.get("axis", -1)), len(shapes[0]) + 1)[0]
    return {"depth": int(attrs["depth"]), "dtype": np.dtype("f4"), "dim": at}


def _shape_param(shape_of: Callable[[Shape, Attrs], Sequence[int]]) -> ToParams:
    """Return a function for parameter ``shape``; ``shape_of(shape, attributes)`` computes it."""
    return lambda shapes, attrs: {"shape": tuple(shape_of(shapes[0], attrs))}


def _new_shape(shape: Shape, attrs: Attrs) -> Shape:
    """Return the shape of a Reshape, with -1 replaced. Raises ShardError if it is missing."""
    wanted = attrs.get("shape", attrs.get("dst_shape"))
    if wanted is None:
        raise ShardError("Reshape: attribute shape must be given, got none")
    return tuple(resolve_shape(shape, wanted))


def _expanded_shape(shape: Shape, attrs: Attrs) -> Sequence[int]:
    """Return the shape with a dim of size 1 inserted at ``axis``."""
    at = normalise_dims(attrs["axis"], len(shape) + 1)[0]
    return (*shape[:at], 1, *shape[at:])


def _squeezed_shape(shape: Shape, attrs: Attrs) -> Sequence[int]:
    """Return the shape of a Squeeze's result: without the dims of the attribute ``axis``."""
    axis = () if attrs["axis"] is None else attrs["axis"]
    removed_dims = set(normalise_dims(axis, len(shape))) or {d for d, n in enumerate(shape) if n == 1}
    if any(shape[d] != 1 for d in removed_dims):
        raise InputError(
            f"Squeeze: axis must name dims of size 1, got dims {sorted(removed_dims)} of shape {shape}"
        )
    return [n for d, n in enumerate(shape) if d not in removed_dims]


def _strided_slice_params(shapes: Shapes, attrs: Attrs) -> Params:
    """Return ``start``, ``stop`` and ``step`` per dim of a StridedSlice, as a dict of tuples.

    Negative bounds count from the end, as in Python. Dims without bounds are not cut. An empty range has ``stop`` equal
    to ``start``. For example, begin (1,) and end (-1,) of the shape (5, 4) give start (1, 0), stop (4, 4), step (1, 1).
    """
    strides = attrs["strides"] or (1,) * len(attrs["begin"])
    if min(strides, default=1) < 1:
        raise InputError(f"StridedSlice: strides must be positive here, got {strides}; nearest: Transpose")
    cuts = [slice(*bounds) for bounds in zip(attrs["begin"], attrs["end"], strides)]
    cuts += [slice(None)] * (len(shapes[0]) - len(cuts))
    bounds_by_dim = [cut.indices(size) for cut, size in zip(cuts, shapes[0])]
    start, stop, step = zip(*bounds_by_dim) if bounds_by_dim else ((), (), ())
    return {"start": start, "stop": tuple(map(max, start, stop)), "step": step}


# -- calls that need more than one of our operators: several results, several steps, modes --------------------------


def _run_gather(primitive: Primitive, operands: Operands, attrs: Params) -> Any:
    """Return rows of a table; cuts have a meaning that our operator's rule does not know."""
    return (
        primitive.run_derived(operands, attrs) if primitive.by_cuts else primitive.run_rule(operands, attrs)
    )


def _run_mean(primitive: Primitive, operands: Operands, attrs: Params) -> Any:
    """Compute the mean from the sum and the number of elements."""
    total = primitive.run_rule(operands, attrs)
    return ops.multiply(total, total.size / max(1, math.prod(operands[0].shape)))


def _run_reshape(primitive: Primitive, operands: Operands, attrs: Params) -> Any:
    """Return the first operand in another shape; the ``run`` of Reshape, ExpandDims and Squeeze.

    If the primitive has no strategy, a tensor keeps its layout as far as possible; see `ops.reshape`. If it has a
    strategy, or if the operand is an array or a parameter, `Primitive.apply` first brings the operand into the layout
    that the strategy asks for.
    """
    x = operands[0]
    params = primitive.row.params([x.shape], attrs)
    if isinstance(x, Tensor) and not primitive.configured:
        return ops.reshape(x, params["shape"])
    return primitive.apply(operands, params)


def _run_composed(primitive: Primitive, operands: Operands, attrs: Params) -> Any:
    """Return the maximum, minimum or product over dims, with a gradient if an operand needs it.

    Without a gradient, the library's operator runs. With one, the library's function is used, because the operator has no
    gradient: the operand is laid out by the strategy, the function is applied, and pending reductions of the result are
    done.
    """
    x = operands[0]
    if not getattr(x, "requires_grad", False):
        return primitive.run_rule(operands, attrs)
    params = primitive.row.params([x.shape], attrs)
    operand = primitive.lay_out(operands, params)[0]
    reduced = getattr(ops, primitive.row.ours)(operand, params["dims"], params["keepdims"])
    return reduced.to(reduced.layout.reduced)


def _run_argmax_with_value(primitive: Primitive, operands: Operands, attrs: Params) -> Any:
    """Return the index of the largest elements along an axis, and the elements."""
    x, axis, keep = primitive.tensor(operands[0]), attrs["axis"], attrs["keep_dims"]
    return ops.argmax(x, axis, keepdims=keep), ops.max(x, axis, keepdims=keep)


def _divide_no_nan(x: Tensor, y: Tensor) -> Tensor:
    """Divide; the result is 0 where the divisor is 0."""
    nowhere = ops.equal(y, 0)
    return ops.where(nowhere, 0, ops.divide(x, ops.where(nowhere, 1, y)))


def _truncated_remainder(x: Tensor, y: Tensor) -> Tensor:
    """Return the remainder of a division that rounds towards zero; it has the sign of the dividend."""
    return ops.multiply(ops.sign(x), ops.remainder(ops.absolute(x), ops.absolute(y)))


def _run_one_hot(primitive: Primitive, operands: Operands, attrs: Params) -> Any:
    """Compute a OneHot with ``on_value`` and ``off_value``."""
    on, off = (float(np.asarray(attrs[name])) for name in ("on_value", "off_value"))
    ones = primitive.run_rule(operands, attrs)
    return ones if (on, off) == (1.0, 0.0) else ops.add(ops.multiply(ones, on - off), off)


def _run_layer_norm(primitive: Primitive, operands: Operands, attrs: Params) -> Any:
    """Return the normalised tensor, the mean and the variance."""
    y, x = primitive.run_rule(operands, attrs), primitive.tensor(operands[0]).detach()
    dims = tuple(range(attrs["begin_norm_axis"] % x.ndim, x.ndim))
    return y, ops.mean(x, dims, keepdims=True), ops.var(x, dims, keepdims=True)


def _run_dropout(primitive: Primitive, operands: Operands, attrs: Params) -> Any:
    """Return the result and the mask; every call draws another mask, equal in every layout."""
    params = {"rate": 1 - attrs["keep_prob"], "seed": next_seed()}
    dropped = primitive.apply(operands, params)
    # A second run with this seed drops equal elements of ones, which gives the mask.
    ones = ops.add(ops.multiply(dropped.detach(), 0.0), 1.0)
    return dropped, ops.not_equal(primitive.apply([ones], params), 0.0)


def _run_split(primitive: Primitive, operands: Operands, attrs: Params) -> Any:
    """Return the tuple of ``output_num`` equal blocks of the operand along ``axis``.

    For example, an operand of shape (6, 4) with axis 0 and ``output_num`` 3 gives three tensors of shape (2, 4). The
    strategy of the primitive must not cut this axis.

    Args:
        primitive: the primitive ``Split`` with its strategy.
        operands: a list with the tensor, parameter or array.
        attrs: attributes with ``axis`` and ``output_num``.

    Raises:
        InputError: If ``output_num`` is not positive, or does not divide the size of the axis.
        ShardError: If the strategy cuts the axis.
        UsageTypeError: If ``axis`` or ``output_num`` is no whole number.
    """
    for name in ("axis", "output_num"):
        if not is_whole_number(attrs[name]):
            raise UsageTypeError(f"Split: {name} must be a whole number, got {attrs[name]!r:.60}")
    shape = np.shape(operands[0]) if not hasattr(operands[0], "shape") else operands[0].shape
    axis, parts = attrs["axis"] % len(shape), attrs["output_num"]
    if parts < 1 or shape[axis] % parts:
        raise InputError(
            f"Split: output_num must be positive and divide {shape[axis]}, the size of axis {axis}, got {parts}"
        )
    size = shape[axis] // parts
    step, pieces = (1,) * len(shape), []
    for k in range(parts):
        start, stop = [0] * len(shape), list(shape)
        start[axis], stop[axis] = k * size, (k + 1) * size
        pieces.append(primitive.apply(operands, {"start": tuple(start), "stop": tuple(stop), "step": step}))
    return tuple(pieces)


def _fill_like(like: Tensor, value: int) -> Tensor:
    """Return a tensor like ``like`` with ``value`` everywhere."""
    return Tensor(
        like.world, like.meta, [np.full(shard.shape, value, shard.dtype) for shard in like.read_shards()]
    )


# -- the table -----------------------------------------------------------------------------------------------------


def _to_snake_case(name: str) -> str:
    """Convert ``LogicalAnd`` to ``logical_and``."""
    return re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower()


def _elementwise_row(names: str, ours: str, functions: str = "", cell: str = "", **more: Any) -> OperatorRow:
    """Return the row of an elementwise operator; ``more`` are further fields."""
    return OperatorRow(names, ours, functions=functions, cell=cell, elements=True, **more)


def _reduction_row(names: str, ours: str, functions: str = "", **more: Any) -> OperatorRow:
    """Return the row of a reduction; ``more`` are further fields."""
    return OperatorRow(
        names, ours, _reduction_params, "(keep_dims=False)", "(x, /, axis=())", functions, **more
    )


def _collective_row(name: str, run: Callable[..., Any], attrs: str = "") -> OperatorRow:
    """Return the table row of a collective, which accepts no strategy."""
    return OperatorRow(
        name,
        attrs=f"({attrs}group='{WORLD}')",
        called="(x)",
        strategies="",
        run=run,
        check=collectives.check_attributes,
    )


ROWS = (
    # -- elementwise: primitives, ours, functions, cell; first those with equal names --------------------------------
    *(_elementwise_row(name, _to_snake_case(name), _to_snake_case(name)) for name in (
        "Maximum", "Minimum", "Equal", "NotEqual", "Greater", "GreaterEqual", "Less", "LessEqual", "LogicalAnd", "LogicalOr",
        "LogicalNot", "Erf", "Exp", "Expm1", "Log", "Log1p", "Sqrt", "Rsqrt", "Square", "Floor", "Ceil", "Sin", "Cos",
    )),
    _elementwise_row("Add AddV2 TensorAdd", "add", "add; tensor_add", also_named="AssignAdd"),
    _elementwise_row("Sub", "subtract", "sub; subtract", also_named="AssignSub"),
    _elementwise_row("Mul", "multiply", "mul; multiply"),
    _elementwise_row("Div RealDiv", "divide", "div; divide"),
    _elementwise_row("DivNoNan", "divide", run=lambda p, xs, _a: _divide_no_nan(*p.lay_out(xs, {}))),
    _elementwise_row("FloorDiv", "floor_divide", "floor_div"),
    _elementwise_row("FloorMod", "remainder"),
    _elementwise_row("Mod", "remainder", run=lambda p, xs, _a: _truncated_remainder(*p.lay_out(xs, {}))),
    _elementwise_row("Pow", "power", "pow"),
    _elementwise_row("SquaredDifference", "squared_difference"),
    _elementwise_row("Atan2", "arctan2"),
    _elementwise_row("Select", "where", "select; where"),
    _elementwise_row("AddN", "add_n", called="([inputs])"),
    _elementwise_row("ReLU", "relu", "relu", "ReLU", also_named="Activation"),
    _elementwise_row("ReLU6", "relu6", "relu6", "ReLU6"),
    _elementwise_row("GeLU", "gelu"),
    _elementwise_row("GeluExt", "gelu", "gelu(input, approximate='none')", attrs="(approximate='none')", called="(input)",
              params=lambda _s, a: {"approximate": a.get("approximate", "none")}, check=lambda a: refuse({
                  f"approximate must be 'none' or 'tanh', got {a['approximate']!r}": a["approximate"] not in ("none", "tanh")})),
    _elementwise_row("FastGeLU FastGelu", "gelu", "fast_gelu", "FastGelu", params=lambda _s, _a: {"approximate": "sigmoid"}),
    _elementwise_row("Tanh", "tanh", "tanh", "Tanh"),
    _elementwise_row("Sigmoid", "sigmoid", "sigmoid", "Sigmoid"),
    _elementwise_row("SiLU", "silu", "silu", "SiLU"),
    _elementwise_row("Elu", "elu", "elu", "ELU"),
    _elementwise_row("Softplus", "softplus"),
    _elementwise_row("Reciprocal Inv", "reciprocal"),
    _elementwise_row("Neg", "negative", "neg; negative"),
    _elementwise_row("Abs", "absolute", "abs"),
    _elementwise_row("Sign", "sign"),
    _elementwise_row("Round Rint", "rint"),
    _elementwise_row("Identity", "identity", also_named="TmpIdentity _TmpIdentity"),
    _elementwise_row("StopGradient", "identity", "stop_gradient", run=lambda p, xs, a: p.run_rule(xs, a).detach()),
    _elementwise_row("OnesLike", "identity", called="(x)", run=lambda p, xs, a: _fill_like(p.run_rule(xs, a), 1)),
    _elementwise_row("ZerosLike", "identity", called="(x)", run=lambda p, xs, a: _fill_like(p.run_rule(xs, a), 0)),
    _elementwise_row("Dropout", "dropout", attrs="(keep_prob=0.5, Seed0=0, Seed1=0)", called="(x)", sharded="identity",
              run=_run_dropout, check=lambda a: refuse({
                  f"keep_prob must be in (0, 1], got {a['keep_prob']}": not 0 < a["keep_prob"] <= 1})),
    OperatorRow("Cast", "cast", lambda _s, a: {"dtype": np.dtype(a["dtype"])}, called="(x, /, dtype)",
        functions="cast(input, dtype)", sharded="identity"),
    OperatorRow("", also_named="DropoutDoMask", first_only=True),
    # -- over dims -------------------------------------------------------------------------------------------
    _reduction_row("ReduceSum", "sum", "sum(input, dim=None, keepdim=False); reduce_sum(x, axis=(), keep_dims=False)",
               also_named="SumExt", aliases="sum"),
    _reduction_row("ReduceMean", "sum", "mean(x, axis=None, keep_dims=False)", also_named="MeanExt", aliases="mean",
               run=_run_mean, mean=True),
    _reduction_row("ReduceMax", "max", "amax(input, axis=None, keepdims=False)", aliases="max amax", run=_run_composed),
    _reduction_row("ReduceMin", "min", "amin(input, axis=None, keepdims=False)", aliases="min amin", run=_run_composed),
    _reduction_row("ReduceProd", "prod", also_named="ProdExt", aliases="prod", run=_run_composed),
    _reduction_row("", "all", also_named="ReduceAll", aliases="all"),
    _reduction_row("", "any", also_named="ReduceAny", aliases="any"),
    OperatorRow("Argmax", "argmax", _dim_param(-1), "(axis=-1, output_type='int32')", "(x)",
        run=lambda p, xs, a: ops.cast(p.run_rule(xs, a), np.dtype(a["output_type"]))),
    OperatorRow("", "argmin", _dim_param(-1), "(axis=-1, output_type='int32')", "(x)", also_named="Argmin"),
    OperatorRow("ArgMaxWithValue", "argmax", attrs="(axis=0, keep_dims=False)", called="(x)", strategies="",
        run=_run_argmax_with_value),
    OperatorRow("Softmax", "softmax", _dims_param(-1), "(axis=-1)", "(x)", "softmax(input, axis=-1)", "Softmax"),
    OperatorRow("LogSoftmax", "log_softmax", _dims_param(-1), "(axis=-1)", "(x)", "log_softmax(logits, axis=-1)", "LogSoftmax"),
    OperatorRow("L2Normalize", "l2_normalize", lambda s, a: {**_dims_param(0)(s, a), "epsilon": a.get("epsilon", 1e-4)},
        "(axis=0, epsilon=1e-4)", "(x)"),
    OperatorRow("LayerNorm", "layer_norm", lambda _s, a: {"epsilon": a.get("epsilon", 1e-7), "begin": int(a.get("begin_norm_axis", -1))},
        "(begin_norm_axis=1, begin_params_axis=1, epsilon=1e-7)", "(x, gamma, beta)", run=_run_layer_norm, also=_norm_sums),
    OperatorRow("", "rms_norm", lambda _s, a: {"epsilon": a.get("epsilon", 1e-6)}, "(epsilon=1e-6)", also_named="RmsNorm",
        aliases="rmsnormext"),
    OperatorRow("SoftmaxCrossEntropyWithLogits", "softmax_cross_entropy", first_dim=(0,), loss=1),
    # -- products, parameters per channel, tables ---------------------------------------------------------
    OperatorRow("MatMul BatchMatMul", "matmul", lambda _s, a: {name: True for name in ("transpose_a", "transpose_b") if a.get(name)},
        "(transpose_a=False, transpose_b=False)", "(a, b)", "matmul(input, other); bmm(input_x, mat2)",
        also_named="MatMulExt BatchMatMulExt", out_strategy="product"),
    OperatorRow("BiasAdd", "bias_add", lambda _s, _a: {"dim": 1}),
    OperatorRow("PReLU", "prelu", lambda _s, _a: {"dim": 1}, adjust=_adjust_prelu_cuts),
    OperatorRow("Gather", "gather", _dim_param(0), "()", "(params, indices, /, axis=0)",
        "gather(input_params, input_indices, axis=0)", run=_run_gather,
        also_named="EmbeddingLookup", strategies="gather", out_strategy="product"),
    OperatorRow("OneHot", "one_hot", _one_hot_params, "(axis=-1)", "(indices, /, depth, on_value=1.0, off_value=0.0)",
        "one_hot(indices, depth, on_value=1, off_value=0, axis=-1)", run=_run_one_hot, of_result=True,
        first_only=True),
    # -- shapes ----------------------------------------------------------------------------------------------
    OperatorRow("Reshape", "reshape", _shape_param(_new_shape), "()", "(x, /, shape)",
        "reshape(input, shape)", run=_run_reshape, sharded="identity", gathers=lambda s, a: _new_shape(s[0], a), aliases="view"),
    OperatorRow("Flatten", "reshape", _shape_param(lambda s, _a: (s[0], int(np.prod(s[1:])))), called="(x)", cell="Flatten",
        strategies="batch", of_strategies="output_shapes",
        also_named="BatchParallel Unique ResizeBilinear ResizeNearestNeighbor"),
    OperatorRow("ExpandDims", "reshape", _shape_param(_expanded_shape), "()", "(x, /, axis)", "expand_dims(input_x, axis)",
        run=_run_reshape, strategies=""),
    OperatorRow("Squeeze", "reshape", _shape_param(_squeezed_shape), "(axis=())", "(x)", "squeeze(input, axis=())", run=_run_reshape,
        strategies=""),
    OperatorRow("BroadcastTo", "broadcast_to", lambda _s, a: {"shape": tuple(a["shape"])}, "(shape)", "(x)",
        "broadcast_to(input, shape)", strategies=""),
    OperatorRow("Transpose", "transpose", _transpose_params, "()", "(x, /, input_perm)", "transpose(input, input_perm)", out_strategy="same",
        aliases="permute"),
    OperatorRow("Concat", "concat", _dim_param(0), "(axis=0)", "([inputs])", "concat(tensors, axis=0); cat(tensors, axis=0)",
        aliases="cat"),
    OperatorRow("Split", "slice_", attrs="(axis=0, output_num=1)", called="(x)", run=_run_split, strategies=""),
    OperatorRow("StridedSlice", "slice_", _strided_slice_params, "()", "(x, /, begin, end, strides=None)", strategies=""),
    # -- collectives of the ranks' arrays (collectives.py) --------------------------------------------------
    _collective_row("AllReduce", make_run(collectives.all_reduce), "op='sum', "),
    _collective_row("AllGather", make_run(collectives.all_gather)),
    _collective_row("ReduceScatter", make_run(collectives.reduce_scatter), "op='sum', "),
    _collective_row("AlltoAll", make_run(collectives.all_to_all), "split_count, split_dim, concat_dim, "),
    _collective_row("Broadcast", collectives.run_broadcast, "root_rank, "),
    OperatorRow("", strategies="data", of_strategies="shapes", also_named="VirtualDataset _VirtualDataset GetNext"),
)  # fmt: skip


def by_name(rows: Sequence[OperatorRow]) -> dict[str, OperatorRow]:
    """Return the rows of the table of operators by name.

    A row has several names: those of its primitives, and those of operators that are no primitive but accept a
    strategy.

    Raises:
        InputError: If two rows have one name.
    """
    rows_by_name: dict[str, OperatorRow] = {}
    for row in rows:
        for name in row.known_as:
            if (earlier_row := rows_by_name.setdefault(name, row)) is not row:
                raise InputError(f"two rows are called {name!r}: our {earlier_row.ours} and our {row.ours}")
    return rows_by_name


#: The rows by all their names.
TABLE = by_name(ROWS)


def operators_with_strategies() -> list[str]:
    """Return the sorted names of all operators that accept a strategy."""
    return sorted(name for name, row in TABLE.items() if row.strategies)


def find_operator(name: str) -> OperatorRow:
    """Return the row of the operator ``name``.

    Raises ShardError if the operator does not exist or accepts no strategy.
    """
    row = TABLE.get(name)
    if row is None or not row.strategies:
        raise unknown(f"no operator {name!r} is known here", name, operators_with_strategies(), ShardError)
    return row


def written_functions() -> dict[str, tuple[OperatorRow, str]]:
    """Return the functions of the table by name, each as its row and its written form."""
    return {name: (row, text) for row in TABLE.values() for name, text in row.written_functions.items()}
