"""MindSpore's operators, one row each: what they are here, how they are written, and what is special about them.

Everything that a program meets of an operator is made from its row: the primitive (``ops.Softmax(axis)``), functions
(``ops.softmax(x, axis)``), the cell (``nn.Softmax(axis)``), what ``.shard`` takes and gives, and ``infer_layout``. Device
matrices, maps, collectives and gradients follow from our operator's rule; restrictions of the originals that a rule does
not have stand beside it. Source of names and restrictions: ``mindspore/ccsrc/frontend/parallel/ops_info/*_info.cc``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

import spmdsim.ops as ops
from spmdsim.core.operator import Op
from spmdsim.dialects.mindspore import collectives, special
from spmdsim.dialects.mindspore.arguments import Arguments, arguments
from spmdsim.dialects.mindspore.communication import HCCL_WORLD_COMM_GROUP as WORLD
from spmdsim.dialects.mindspore.errors import ShardError
from spmdsim.errors import InputError, unknown
from spmdsim.ops.reduce import normal_dims
from spmdsim.ops.shape import full_shape

Shape = tuple[int, ...]
Params = dict[str, Any]
Attrs = Mapping[str, Any]
#: Our parameters from the operands' shapes and MindSpore's attributes.
ToParams = Callable[[Sequence[Shape], Attrs], Params]


def no_params(_shapes: Sequence[Shape], _attrs: Attrs) -> Params:
    """Of operators that have none."""
    return {}


def our_operator(name: str) -> Op:
    """One of our operators."""
    op: Op = getattr(ops, name).op
    return op


@dataclass(frozen=True, eq=False)
class Row:
    """An operator of MindSpore.

    Attributes:
        names: its names as a primitive.
        ours: our operator's name.
        made: what the primitive is made with, all attributes.
        called: what it is called with: operands, then attributes after a ``/``.
        params: our operator's parameters.
        functions: names of functions; with arguments of their own in parentheses, in the order of ``called`` and
            then ``made``.
        cell: its name as a cell that is made as the primitive is.
        run: what a call does beyond running our operator, ``(primitive, operands, attributes) -> result``.
        check: refuses attributes a primitive cannot be made with.
        also_named: further names that have strategies only.
        aliases: names in hyper-parallel's ``infer_layout``, in lower case.
        strategies: how strategies are understood: ``"rule"`` by the operator's rule, ``"batch"`` dim 0 only (operators
            without a rule of their own, batch_parallel_info.cc), ``"data"`` (sources of data, whose dims stand for
            themselves), ``"gather"``, or ``""``: ``shard`` does not know it.
        sharded: our operator whose rule says what strategies mean, if it is another one.
        elements: it is a function of elements.
        out_strategy: ``"no"`` if one is refused, ``"same"`` if only the computed one is accepted, ``"product"`` for a
            MatMul's choice of all_reduce or reduce_scatter.
        of_result: the cuts given are those of the result (OneHot).
        mean: the summed result is divided by the number of elements (ReduceMean).
        first_dim: results of which MindSpore keeps the map of the first dim only.
        loss: which result ``_VirtualDiv`` looks at.
        gathers: the global shape of a result that is not split at all (a Reshape by itself).
        adjust: the cuts really meant, from those given and the shapes.
        first_only: further operands have no strategy and are whole (the mask of a DropoutDoMask, the values of a
            OneHot).
        statistics: two further results, sums over the dims that are normalised (LayerNorm's mean and variance).
    """

    names: str
    ours: str = "identity"
    params: ToParams = no_params
    made: str = "()"
    called: str = "(*operands)"
    functions: str = ""
    cell: str = ""
    run: Callable[[Any, list[Any], Params], Any] | None = None
    check: Callable[[Attrs], None] = lambda _attrs: None
    also_named: str = ""
    aliases: str = ""
    strategies: str = "rule"
    sharded: str = ""
    elements: bool = False
    out_strategy: str = "no"
    of_result: bool = False
    mean: bool = False
    first_dim: tuple[int, ...] = ()
    loss: int = 0
    gathers: Callable[[Sequence[Shape], Attrs], Shape] | None = None
    adjust: Callable[[Any, Sequence[Shape]], Any] = lambda cuts, _shapes: cuts
    first_only: bool = False
    statistics: bool = False

    @property
    def primitives(self) -> list[str]:
        """Its names as a primitive."""
        return self.names.split()

    @property
    def known_as(self) -> list[str]:
        """All its names."""
        return [*self.primitives, *self.also_named.split()]

    @property
    def written_functions(self) -> dict[str, str]:
        """Its functions by name, as they are written."""
        written = [text.strip() for text in self.functions.split(";") if text]
        return {text.partition("(")[0]: text for text in written}

    @cached_property
    def op(self) -> Op:
        """Our operator whose rule says what strategies mean."""
        return our_operator(self.sharded or self.ours)

    def strategy_params(self, shapes: Sequence[Shape], attrs: Attrs) -> Params:
        """The parameters of :attr:`op`; another operator than ours has none."""
        return {} if self.sharded else self.params(shapes, attrs)

    @cached_property
    def makes(self) -> Arguments:
        """What the primitive is made with."""
        return arguments(self.made)

    @cached_property
    def takes(self) -> Arguments:
        """What the primitive is called with."""
        return arguments(self.called)

    def also(self, shapes: Sequence[Shape], attrs: Attrs) -> list[tuple[Op, Params]]:
        """Further results, each an operator on the first operand with its parameters."""
        if not self.statistics:
            return []
        ndim = len(shapes[0])
        dims = tuple(range(int(attrs.get("begin_norm_axis", -1)) % ndim, ndim))
        return [(our_operator("sum"), {"dims": dims, "keepdims": True})] * 2


def _dims(attrs: Attrs, ndim: int, default: Any = None) -> tuple[int, ...]:
    """MindSpore's ``axis``: a number, several, or none at all for every dim."""
    axis = attrs.get("axis", attrs.get("dim", default))
    if axis is None or (not isinstance(axis, int) and not tuple(axis)):
        return tuple(range(ndim))
    return normal_dims(axis if isinstance(axis, int) else tuple(axis), ndim)


def _along(default: int) -> ToParams:
    """One dim, or several together."""
    return lambda shapes, attrs: {"dim": _dims(attrs, len(shapes[0]), default)}


def _one_along(default: int) -> ToParams:
    """One dim."""

    def params(shapes: Sequence[Shape], attrs: Attrs) -> Params:
        dims = _dims(attrs, len(shapes[0]), default)
        if len(dims) != 1:
            raise ShardError(f"this operator takes one axis, but got {attrs.get('axis')}")
        return {"dim": dims[0]}

    return params


def _per_channel(_shapes: Sequence[Shape], _attrs: Attrs) -> Params:
    return {"dim": 1}


def _transposes(_shapes: Sequence[Shape], attrs: Attrs) -> Params:
    return {name: True for name in ("transpose_a", "transpose_b") if attrs.get(name)}


def _reduced(shapes: Sequence[Shape], attrs: Attrs) -> Params:
    keep = attrs.get("keep_dims", attrs.get("keepdim", attrs.get("keepdims", False)))
    return {"dims": _dims(attrs, len(shapes[0])), "keepdims": bool(keep)}


def _perm(shapes: Sequence[Shape], attrs: Attrs) -> Params:
    ndim = len(shapes[0])
    perm = tuple(attrs.get("perm", attrs.get("input_perm", range(ndim)[::-1])))
    if sorted(p % ndim if -ndim <= p < ndim else ndim for p in perm) != list(range(ndim)):
        raise ShardError(f"perm {perm} is not an order of the {ndim} dims")
    return {"perm": tuple(p % ndim for p in perm)}


def _norm_begin(shapes: Sequence[Shape], attrs: Attrs) -> Params:
    return {"epsilon": attrs.get("epsilon", 1e-7), "begin": int(attrs.get("begin_norm_axis", -1))}


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
    wanted = attrs.get("shape", attrs.get("dst_shape"))
    if wanted is None:
        raise ShardError("Reshape needs the attribute shape")
    return tuple(full_shape(shapes[0], wanted))


def _reshaped(shape_of: Callable[[Shape, Attrs], Sequence[int]]) -> ToParams:
    return lambda shapes, attrs: {"shape": tuple(shape_of(shapes[0], attrs))}


def _expanded(shape: Shape, attrs: Attrs) -> Sequence[int]:
    at = normal_dims(attrs["axis"], len(shape) + 1)[0]
    return (*shape[:at], 1, *shape[at:])


def _squeezed(shape: Shape, attrs: Attrs) -> Sequence[int]:
    axis = () if attrs["axis"] is None else attrs["axis"]
    gone = set(normal_dims(axis, len(shape))) or {d for d, n in enumerate(shape) if n == 1}
    if any(shape[d] != 1 for d in gone):
        raise InputError(f"Squeeze takes dims of size 1 away, but shape {shape} has others at {sorted(gone)}")
    return [n for d, n in enumerate(shape) if d not in gone]


def _strides(shapes: Sequence[Shape], attrs: Attrs) -> Params:
    shape, strides = shapes[0], attrs["strides"]
    cuts = [
        slice(a, b, s) for a, b, s in zip(attrs["begin"], attrs["end"], strides or (1,) * len(attrs["begin"]))
    ]
    cuts += [slice(None)] * (len(shape) - len(cuts))
    start, stop, step = zip(*(cut.indices(n) for cut, n in zip(cuts, shape)))
    if min(step) < 1:
        raise InputError(f"StridedSlice takes positive strides here, but got {strides}; nearest: Transpose")
    return {"start": start, "stop": tuple(map(max, start, stop)), "step": step}


def _form(_shapes: Sequence[Shape], attrs: Attrs) -> Params:
    return {"approximate": attrs.get("approximate", "none")}


def _check_form(attrs: Attrs) -> None:
    if attrs["approximate"] not in ("none", "tanh"):
        raise InputError(f"approximate is 'none' or 'tanh', not {attrs['approximate']!r}")


def _elements(names: str, ours: str, functions: str = "", cell: str = "", **more: Any) -> Row:
    return Row(names, ours, functions=functions, cell=cell, elements=True, **more)


def _reduction(names: str, ours: str, functions: str = "", **more: Any) -> Row:
    return Row(names, ours, _reduced, "(keep_dims=False)", "(x, /, axis=())", functions, **more)


def _collective(name: str, run: Callable[..., Any], made: str = "") -> Row:
    return Row(
        name, made=f"({made}group='{WORLD}')", called="(x)", strategies="", run=run, check=collectives.check
    )


ROWS = (
    # -- functions of elements: primitives, ours, functions, cell ----------------------------------------
    _elements("Add AddV2 TensorAdd", "add", "add; tensor_add", also_named="AssignAdd"),
    _elements("Sub", "subtract", "sub; subtract", also_named="AssignSub"),
    _elements("Mul", "multiply", "mul; multiply"),
    _elements("Div RealDiv DivNoNan", "divide", "div; divide"),
    _elements("FloorDiv", "floor_divide", "floor_div"),
    _elements("Mod FloorMod", "remainder"),
    _elements("Pow", "power", "pow"),
    _elements("Maximum", "maximum", "maximum"),
    _elements("Minimum", "minimum", "minimum"),
    _elements("Equal", "equal", "equal"),
    _elements("NotEqual", "not_equal", "not_equal"),
    _elements("Greater", "greater", "greater"),
    _elements("GreaterEqual", "greater_equal", "greater_equal"),
    _elements("Less", "less", "less"),
    _elements("LessEqual", "less_equal", "less_equal"),
    _elements("LogicalAnd", "logical_and", "logical_and"),
    _elements("LogicalOr", "logical_or", "logical_or"),
    _elements("LogicalNot", "logical_not", "logical_not"),
    _elements("SquaredDifference", "squared_difference"),
    _elements("Atan2", "arctan2"),
    _elements("Select", "where", "select; where"),
    _elements("AddN", "add_n", called="([inputs])"),
    _elements("ReLU", "relu", "relu", "ReLU", also_named="Activation"),
    _elements("ReLU6", "relu6", "relu6", "ReLU6"),
    _elements("GeLU", "gelu"),
    _elements("GeluExt", "gelu", "gelu(input, approximate='none')", params=_form, made="(approximate='none')",
              called="(input)", check=_check_form),
    _elements("FastGeLU FastGelu", "gelu", "fast_gelu", "FastGelu", params=lambda _s, _a: {"approximate": "sigmoid"}),
    _elements("Erf", "erf", "erf"),
    _elements("Tanh", "tanh", "tanh", "Tanh"),
    _elements("Sigmoid", "sigmoid", "sigmoid", "Sigmoid"),
    _elements("SiLU", "silu", "silu", "SiLU"),
    _elements("Elu", "elu", "elu", "ELU"),
    _elements("Softplus", "softplus"),
    _elements("Exp", "exp", "exp"),
    _elements("Expm1", "expm1", "expm1"),
    _elements("Log", "log", "log"),
    _elements("Log1p", "log1p", "log1p"),
    _elements("Sqrt", "sqrt", "sqrt"),
    _elements("Rsqrt", "rsqrt", "rsqrt"),
    _elements("Square", "square", "square"),
    _elements("Reciprocal Inv", "reciprocal"),
    _elements("Neg", "negative", "neg; negative"),
    _elements("Abs", "absolute", "abs"),
    _elements("Sign", "sign"),
    _elements("Floor", "floor", "floor"),
    _elements("Ceil", "ceil", "ceil"),
    _elements("Round Rint", "rint"),
    _elements("Sin", "sin", "sin"),
    _elements("Cos", "cos", "cos"),
    _elements("Identity", "identity", also_named="TmpIdentity _TmpIdentity"),
    _elements("StopGradient", "identity", "stop_gradient", run=special.stopped),
    _elements("OnesLike", "identity", called="(x)", run=special.filled(1)),
    _elements("ZerosLike", "identity", called="(x)", run=special.filled(0)),
    _elements("Dropout", "dropout", made="(keep_prob=0.5, Seed0=0, Seed1=0)", called="(x)", sharded="identity",
              run=special.dropout, check=special.check_keep_prob),
    Row("Cast", "cast", lambda _s, a: {"dtype": np.dtype(a["dtype"])}, called="(x, /, dtype)",
        functions="cast(input, dtype)", sharded="identity"),
    Row("", also_named="DropoutDoMask", first_only=True),
    # -- over dims -------------------------------------------------------------------------------------------
    _reduction("ReduceSum", "sum", "sum(input, dim=None, keepdim=False); reduce_sum(x, axis=(), keep_dims=False)",
               also_named="SumExt", aliases="sum"),
    _reduction("ReduceMean", "sum", "mean(x, axis=None, keep_dims=False)", also_named="MeanExt", aliases="mean",
               run=special.mean, mean=True),
    _reduction("ReduceMax", "max", "amax(input, axis=None, keepdims=False)", aliases="max amax", run=special.composed),
    _reduction("ReduceMin", "min", "amin(input, axis=None, keepdims=False)", aliases="min amin", run=special.composed),
    _reduction("ReduceProd", "prod", also_named="ProdExt", aliases="prod", run=special.composed),
    _reduction("", "all", also_named="ReduceAll", aliases="all"),
    _reduction("", "any", also_named="ReduceAny", aliases="any"),
    Row("Argmax", "argmax", _one_along(-1), "(axis=-1, output_type='int32')", "(x)", run=special.argmax),
    Row("", "argmin", _one_along(-1), also_named="Argmin"),
    Row("ArgMaxWithValue", "argmax", made="(axis=0, keep_dims=False)", called="(x)", strategies="",
        run=special.argmax_with_value),
    Row("Softmax", "softmax", _along(-1), "(axis=-1)", "(x)", "softmax(input, axis=-1)", "Softmax"),
    Row("LogSoftmax", "log_softmax", _along(-1), "(axis=-1)", "(x)", "log_softmax(logits, axis=-1)", "LogSoftmax"),
    Row("L2Normalize", "l2_normalize", lambda s, a: {**_along(0)(s, a), "epsilon": a.get("epsilon", 1e-4)},
        "(axis=0, epsilon=1e-4)", "(x)"),
    Row("LayerNorm", "layer_norm", _norm_begin, "(begin_norm_axis=1, begin_params_axis=1, epsilon=1e-7)",
        "(x, gamma, beta)", run=special.layer_norm, statistics=True),
    Row("", "rms_norm", lambda _s, a: {"epsilon": a.get("epsilon", 1e-6)}, also_named="RmsNorm", aliases="rmsnormext"),
    Row("SoftmaxCrossEntropyWithLogits", "softmax_cross_entropy", first_dim=(0,), loss=1),
    # -- products, parameters per channel, tables ---------------------------------------------------------
    Row("MatMul BatchMatMul", "matmul", _transposes, "(transpose_a=False, transpose_b=False)", "(a, b)",
        "matmul(input, other); bmm(input_x, mat2)", run=special.matmul, also_named="MatMulExt BatchMatMulExt", out_strategy="product"),
    Row("BiasAdd", "bias_add", _per_channel),
    Row("PReLU", "prelu", _per_channel, adjust=_slopes),
    Row("Gather", "gather", _one_along(0), "()", "(params, indices, /, axis=0)", "gather(input_params, input_indices, axis=0)",
        run=special.gather, also_named="EmbeddingLookup", strategies="gather", out_strategy="product"),
    Row("OneHot", "one_hot", _one_hot, "(axis=-1)", "(indices, /, depth, on_value=1.0, off_value=0.0)",
        "one_hot(indices, depth, on_value=1, off_value=0, axis=-1)", run=special.one_hot, of_result=True,
        first_only=True),
    # -- shapes ----------------------------------------------------------------------------------------------
    Row("Reshape", "reshape", lambda s, a: {"shape": _new_shape(s, a)}, "()", "(x, /, shape)",
        "reshape(input, shape)", run=special.reshape, sharded="identity", gathers=_new_shape, aliases="view"),
    Row("Flatten", "reshape", _reshaped(lambda s, _a: (s[0], int(np.prod(s[1:])))), called="(x)", cell="Flatten",
        strategies="batch", also_named="BatchParallel Unique ResizeBilinear ResizeNearestNeighbor"),
    Row("ExpandDims", "reshape", _reshaped(_expanded), "()", "(x, /, axis)", "expand_dims(input_x, axis)",
        run=special.reshape, strategies=""),
    Row("Squeeze", "reshape", _reshaped(_squeezed), "(axis=())", "(x)", "squeeze(input, axis=())", run=special.reshape,
        strategies=""),
    Row("BroadcastTo", "broadcast_to", lambda _s, a: {"shape": tuple(a["shape"])}, "(shape)", "(x)",
        "broadcast_to(input, shape)", strategies=""),
    Row("Transpose", "transpose", _perm, "()", "(x, /, input_perm)", "transpose(input, input_perm)", out_strategy="same",
        aliases="permute"),
    Row("Concat", "concat", _one_along(0), "(axis=0)", "([inputs])", "concat(tensors, axis=0); cat(tensors, axis=0)",
        aliases="cat"),
    Row("Split", "slice_", made="(axis=0, output_num=1)", called="(x)", run=special.split, strategies=""),
    Row("StridedSlice", "slice_", _strides, "()", "(x, /, begin, end, strides=None)", strategies=""),
    # -- what each rank of a group holds (collectives.py) ---------------------------------------------------
    _collective("AllReduce", collectives.all_reduce, "op='sum', "),
    _collective("AllGather", collectives.all_gather),
    _collective("ReduceScatter", collectives.reduce_scatter, "op='sum', "),
    _collective("AlltoAll", collectives.all_to_all, "split_count, split_dim, concat_dim, "),
    _collective("NeighborExchange", collectives.neighbor_exchange,
                "send_rank_ids, recv_rank_ids, recv_shapes, send_shapes, recv_type, "),
    _collective("Broadcast", collectives.broadcast, "root_rank, "),
    Row("", strategies="data", also_named="VirtualDataset _VirtualDataset GetNext"),
)  # fmt: skip


def by_name(rows: Sequence[Row]) -> dict[str, Row]:
    """Rows by all their names.

    Raises:
        InputError: a name that two of them have.
    """
    rows_by_name: dict[str, Row] = {}
    for row in rows:
        for name in row.known_as:
            if rows_by_name.setdefault(name, row) is not row:
                raise InputError(
                    f"two rows are called {name!r}: our {rows_by_name[name].ours} and our {row.ours}"
                )
    return rows_by_name


#: The rows by all their names.
TABLE = by_name(ROWS)


def known() -> list[str]:
    """The names of all operators that have a strategy here."""
    return sorted(name for name, row in TABLE.items() if row.strategies)


def find(name: str) -> Row:
    """The row of an operator with strategies.

    Raises:
        RuntimeError: there is none; the message names the ones there are.
    """
    row = TABLE.get(name)
    if row is None or not row.strategies:
        raise unknown(f"no operator {name!r} is known here", name, known(), ShardError)
    return row
