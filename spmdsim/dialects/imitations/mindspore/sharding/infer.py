"""Infer the layout of an operator's result from those of its operands, like hyper-parallel's ``infer_layout``.

The result follows from the operator's rule, pending reductions included. If an element-wise function has a whole
operand beside a split one, the whole operand is sliced first, without communication. Its shape must be given then,
because a dim of size one is not split. The original accepts operands whose local computation gives wrong values: a
table split by rows without masking, a concatenation along a split dim, a softmax of pending sums. This module refuses
them, or reports a pending reduction.

>>> from spmdsim.dialects.mindspore import Layout
>>> layout = Layout((2, 4), ("dp", "mp"))
>>> infer_layout("MatMul", [layout("dp", "mp"), layout("mp", "None")]).placement_text()
'S(0)P(sum)'
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spmdsim.arrays import Op
from spmdsim.arrays.ops.dim_reductions import normalise_dims
from spmdsim.arrays.ops.shape import resolve_shape
from spmdsim.core import BoundRule, Layout
from spmdsim.dialects.imitations.mindspore.map_layouts import Shape
from spmdsim.dialects.imitations.mindspore.sharding.sharded import bind, check_operands
from spmdsim.dialects.mindspore.operators import TABLE
from spmdsim.dialects.mindspore.table import OperatorRow, our_operator
from spmdsim.errors import LayoutError, RuleError, many

Args = Mapping[str, Any]

_UNARY = ("elementwise", "activationwithaxis")
#: Functions of one tensor; further operands have its layout.
_OF_ONE_OPERAND = ("softmax", "logsoftmax", "activationwithaxis")


def infer_layout(
    operator: str,
    layouts: Sequence[Layout | None],
    args: Args | None = None,
    input_shapes: Sequence[Sequence[int]] | None = None,
) -> Layout:
    """Return the layout of an operator's result, with its pending reductions.

    Args:
        operator: hyper-parallel's or MindSpore's name. Text from "(" or "/" on is ignored; case and underscores count
            only for Linear and Embedding.
        layouts: one per operand; None for an absent operand (a bias).
        args: its other arguments, such as ``{"dim": 1, "keepdim": True}``; None for none. ``src_shape`` is the shape of
            a single operand. One of its sizes may be -1, for any size that divides; then ``input_shapes`` is not used.
        input_shapes: the global shapes, one per operand (any for an absent one) or one per present operand. None if
            they are unknown. Without them and ``src_shape``, each dim has as many elements as the largest mesh has
            ranks, and a replicated operand is not sliced to fit the others.

    Raises:
        LayoutError: If no operand has a layout, the number of shapes is wrong, or a layout does not fit its shape.
        RuleError: If the operator is unknown or cannot combine the operands, or if the layout depends on the size -1.
    """
    arguments = dict(args or {})
    present = [layout for layout in layouts if layout is not None]
    if not present:
        raise LayoutError(f"{operator}: at least one operand must have a layout, got None for all")
    if -1 in arguments.get("src_shape", ()):
        return _infer_for_any_size(operator, present, arguments)
    if input_shapes is not None and len(input_shapes) == len(layouts):
        input_shapes = [shape for shape, layout in zip(input_shapes, layouts) if layout is not None]
    shapes = _operand_shapes(present, arguments, input_shapes)
    name = operator.split("(")[0].strip()
    key = _normalize_name(name)
    if input_shapes is None and "matmul" in name.lower():
        shapes = [_broadcast_batch(layout, shape, present) for layout, shape in zip(present, shapes)]
    if name == "Linear":
        return _infer_linear(present, shapes)
    if name == "Embedding":
        _refuse_split_table(operator, present)
    if key in _OF_ONE_OPERAND:
        present, shapes = _common_layout(operator, present), shapes[:1]
    op, params, operands = _find_operator(name, shapes, arguments)
    if input_shapes is not None or "src_shape" in arguments:
        present = [_without_outer(layout, shape) for layout, shape in zip(present, shapes)]
        check_operands(present, shapes)
    operand_layouts = [present[i] for i in operands] if operands else present
    bound = bind(op, [shapes[i] for i in operands] if operands else shapes, params)
    if input_shapes is not None and (key in _UNARY or (name in TABLE and TABLE[name].elements)):
        operand_layouts = cut_replicated(bound, operand_layouts)
    return bound.output_layouts(bound.infer(make_partial(bound, operand_layouts)))[0]


def _refuse_split_table(operator: str, layouts: Sequence[Layout]) -> None:
    """Raise RuleError if the table of an Embedding, the second operand, is split by rows."""
    if len(layouts) > 1 and layouts[1].canonical.dims[0]:
        raise RuleError(
            f"{operator}: the table must not be split by rows, got {layouts[1]}; the function embedding accepts "
            "such a table, and its result is then partial"
        )


def cut_replicated(bound: BoundRule, layouts: Sequence[Layout]) -> list[Layout]:
    """Split whole dims as other operands split their factors; return the operands' layouts.

    A factor is a dim that operands share; the first operand that splits it decides. For example, if operand 0
    of ``m k, k n -> m n`` splits k along x, and k is whole in operand 1, operand 1 gets k split along x. A dim
    is split only along axes that its operand does not use yet, so a local slice is enough.

    Args:
        bound: rule of the operator for given shapes: it names the factor (shared index) of each dim.
        layouts: layouts of the operands.
    """
    axes: dict[str, tuple[str, ...]] = {}
    for term, layout in zip(bound.inputs, layouts):
        for dim, entry in zip(term, layout.canonical.dims):
            if dim and entry:
                axes.setdefault(dim[0], entry)
    cut = []
    for term, layout in zip(bound.inputs, layouts):
        free = set(layout.replicated_axes)
        # A factor that no operand splits has the default ("",), which is never free, so its dim stays whole.
        dims = [
            axes[dim[0]] if dim and not entry and free.issuperset(axes.get(dim[0], ("",))) else entry
            for dim, entry in zip(term, layout.canonical.dims)
        ]
        cut.append(Layout(layout.mesh, dims, layout.partial))
    return cut


def _infer_for_any_size(operator: str, layouts: Sequence[Layout], args: Args) -> Layout:
    """Return the layout of a reshape whose ``src_shape`` has one unknown size, written as -1.

    The layout is derived for two sizes, and both results must be equal. The sizes are 101 and 103 times the
    smallest size that the axes of this dim divide, and for which the sizes of ``dst_shape`` are integers. For
    example, (-1, 6) with dim 0 split in 4 is tried as (404, 6) and (412, 6) for the new shape (-1, 3).

    Args:
        operator: name of the operator.
        layouts: layouts of the operands; the first one has the dims of ``src_shape``.
        args: its other arguments, with ``src_shape``, and ``dst_shape`` or ``shape``.

    Raises:
        RuleError: If the results differ, more than one size is unknown, or ``src_shape`` does not have the layout's
            dims.
    """
    src, dst = tuple(args["src_shape"]), _target_shape(args)
    if src.count(-1) > 1 or layouts[0].ndim != len(src):
        raise RuleError(
            f"src_shape must have {many(layouts[0].ndim, 'size')}, one per dim of the layout, and at most one -1, got "
            f"{src}"
        )
    unknown_dim = src.index(-1)
    known_src, known_dst = (math.prod(size for size in shape if size != -1) for shape in (src, dst))
    least = math.lcm(layouts[0].parts[unknown_dim], known_dst // math.gcd(known_dst, known_src))
    results = []
    for prime in (101, 103):
        shape = [*src[:unknown_dim], least * prime, *src[unknown_dim + 1 :]]
        results.append(infer_layout(operator, layouts, {**args, "src_shape": shape}))
    if results[0] != results[1]:
        raise RuleError(
            f"the layout of the result depends on the unknown size of src_shape {src}; give this size"
        )
    return results[0]


def _common_layout(operator: str, layouts: Sequence[Layout]) -> list[Layout]:
    """Return ``[layout]``, the one layout that all operands have."""
    if any(layout != layouts[0] for layout in layouts):
        raise RuleError(
            f"the operands of {operator} must have the same layout, but got {', '.join(map(str, layouts))}"
        )
    return [layouts[0]]


def _without_outer(layout: Layout, shape: Shape) -> Layout:
    """Return the layout without leading dims that the shape lacks, if they are whole.

    A number has no dims.
    """
    extra = layout.ndim - len(shape)
    if extra <= 0 or any(layout.canonical.dims[:extra]):
        return layout
    return Layout(layout.mesh, layout.dims[extra:], layout.partial)


def make_partial(bound: BoundRule, layouts: Sequence[Layout]) -> list[Layout]:
    """Return the operands' layouts after making replicated operands partial.

    An operand is made partial if the operator adds it to a partial one. Nothing moves: one rank of each group keeps the
    values, the others have zeros. MindSpore divides the values by the size of the group instead. If another added
    operand is split along the pending axis, all added operands stay as they are. Each pending axis is decided by
    itself.

    Args:
        bound: rule of the operator for given shapes: it names the factor (shared index) of each dim.
        layouts: layouts of the operands.
    """
    partial = list(layouts)
    for axis in dict.fromkeys(axis for layout in layouts for axis in layout.partial_axes):
        holders = {i for i, layout in enumerate(layouts) if axis in layout.partial_axes}
        for added in bound.rule.linear:
            others = added - holders  # the added operands without a pending sum along the axis
            if holders < added and all(axis in layouts[i].replicated_axes for i in others):
                op = dict(layouts[min(holders)].partial)[axis]
                for i in others:
                    partial[i] = partial[i].with_partial({**dict(partial[i].partial), axis: op})
    return partial


def _infer_linear(layouts: Sequence[Layout], shapes: Sequence[Shape]) -> Layout:
    """Return the layout of ``x @ weight.T + bias`` with weight ``[out, in]``.

    Args:
        layouts: layouts of x, weight and, if there is one, bias.
        shapes: their global shapes.

    Raises:
        RuleError: If the product is partial and a bias is given, which would be added several times; or the layouts do
            not fit.
    """
    bound = our_operator("matmul").bind(shapes[:2], {"transpose_b": True})
    product = bound.output_layouts(bound.infer(layouts[:2]))[0]
    if len(layouts) < 3:
        return product
    if product.partial:
        raise RuleError(
            f"the product is partial over {list(product.partial_axes)}, so its sum would contain the bias of "
            "every rank; reduce the product before the bias is added"
        )
    added = our_operator("add").bind([bound.output_shapes[0], shapes[2]], {})
    return added.output_layouts(added.infer([product, layouts[2]]))[0]


def _operand_shapes(
    layouts: Sequence[Layout], args: Args, shapes: Sequence[Sequence[int]] | None
) -> list[Shape]:
    """Return the operands' global shapes.

    - With ``shapes``: these.
    - Without ``shapes``, but with ``src_shape`` in ``args``: this shape.
    - Without both: every dim has as many elements as the largest mesh has ranks.

    Args:
        layouts: layouts of the operands.
        args: other arguments; ``src_shape`` is the shape of the only operand.
        shapes: the shapes, or None if they are not known.

    Raises:
        LayoutError: If ``shapes`` has not one shape per layout.
    """
    if shapes is not None:
        if len(shapes) != len(layouts):
            raise LayoutError(
                f"input_shapes must have one shape per operand, got {many(len(shapes), 'shape')} for "
                f"{many(len(layouts), 'operand')}"
            )
        return [tuple(shape) for shape in shapes]
    if "src_shape" in args:
        return [tuple(args["src_shape"])]
    size = max(layout.mesh.size for layout in layouts)
    return [(size,) * layout.ndim for layout in layouts]


def _broadcast_batch(layout: Layout, shape: Shape, layouts: Sequence[Layout]) -> Shape:
    """Return a shape like an operand's shape, with size 1 for the batch dims that are broadcast.

    Batch dims of a product are all but the last two. One is broadcast if it is whole in this operand, but split in
    another one.
    """
    sizes = list(shape)
    for from_right in range(3, layout.ndim + 1):
        is_split = any(
            operand.ndim >= from_right and operand.canonical.dims[-from_right] for operand in layouts
        )
        if is_split and not layout.canonical.dims[-from_right]:
            sizes[-from_right] = 1
    return tuple(sizes)


def _find_operator(
    name: str, shapes: Sequence[Shape], args: Args
) -> tuple[Op, dict[str, Any], tuple[int, ...]]:
    """Return the operator of this library that stands for an operator of MindSpore or hyper-parallel.

    Args:
        name: name of the operator: MindSpore's, hyper-parallel's, or else of a function of this library.
        shapes: global shapes of the operands.
        args: its other arguments; ``dim`` counts as ``axis``.

    Returns:
        (operator, parameters, operands): the indices of the operands that it takes, which are all if the tuple is
        empty.

    Raises:
        RuleError: If the operator is unknown, or an argument of a reshape, transposition or other operator is wrong.
    """
    key, ndim = _normalize_name(name), len(shapes[0])
    row = _index_rows().get(key)
    # Operators whose parameters here do not follow from MindSpore's attributes by their row.
    params_by_name: dict[str, Callable[[], dict[str, Any]]] = {
        "Reshape": lambda: {"shape": resolve_shape(shapes[0], _target_shape(args))},
        "Transpose": lambda: {"perm": _read_permutation(args, ndim)},
        "LayerNorm": lambda: {"epsilon": 0.0, "begin": -len(shapes[-1])},
        "OneHot": lambda: {"depth": int(args.get("num_classes", 8)), "dtype": "f4"},
        "RmsNorm": lambda: {"epsilon": 0.0},
    }
    if key in _UNARY:
        return _elementwise_operator(len(shapes)), {}, ()
    if row is not None:
        first = row.known_as[0]
        attributes = {**args, "axis": args["dim"]} if "dim" in args else args
        read = params_by_name.get(first, lambda: row.strategy_params(shapes, attributes))
        params = read()
        op = our_operator(row.ours) if first == "Reshape" else row.op
        return op, params, (0, 1) if first == "RmsNorm" else ()
    try:
        return our_operator(key), {}, ()
    except AttributeError:
        raise RuleError(
            f"no operator {name!r} is known here; give MindSpore's name, such as MatMul"
        ) from None


def _normalize_name(name: str) -> str:
    """Return an operator's name in lower case, without underscores and without text after a slash."""
    return name.split("/")[0].strip().lower().replace("_", "")


def _index_rows() -> dict[str, OperatorRow]:
    """Return the rows by MindSpore's and hyper-parallel's names, in the form of `_normalize_name`."""
    rows = [row for row in TABLE.values() if row.strategies in ("rule", "gather")]
    return {_normalize_name(name): row for row in rows for name in (*row.known_as, *row.aliases.split())}


def _elementwise_operator(count: int) -> Op:
    """Return an operator of ``count`` operands that stands for any element-wise operator.

    Only its layouts are used. The operator for one operand is relu, which is not linear: partial sums are reduced
    before it. The operator for two or more operands adds them: partial sums stay partial.
    """
    if count == 1:
        return our_operator("relu")
    if count == 2:
        return our_operator("add")
    from spmdsim.core import Rule

    rule = Rule.parse(f"{', '.join(['...'] * count)} -> ...")
    return Op("elementwise", rule, lambda *arrays: sum(arrays))


def _target_shape(args: Args) -> Sequence[int]:
    """Return the new shape of a reshape: ``dst_shape`` or ``shape``.

    Raises RuleError if neither is given.
    """
    sizes = args.get("dst_shape", args.get("shape"))
    if sizes is None:
        raise RuleError("Reshape: dst_shape must be given, got None")
    return tuple(sizes)


def _read_permutation(args: Args, ndim: int) -> tuple[int, ...]:
    """Return the order of dims: ``perm`` (or ``dims``), or the exchange of ``dim0`` and ``dim1``.

    Args:
        args: arguments of a transposition. ``dim0`` and ``dim1`` may be negative, elements of ``perm`` may not.
        ndim: number of dims.

    Raises:
        RuleError: If ``perm`` is no permutation of 0 to ndim - 1, or ``dim0`` or ``dim1`` is out of range.
    """
    if "dim0" in args:
        first, second = normalise_dims((args["dim0"], args["dim1"]), ndim)
        order = list(range(ndim))
        order[first], order[second] = second, first
        return tuple(order)
    perm = tuple(args.get("perm", args.get("dims", ())))
    if sorted(perm) != list(range(ndim)):
        raise RuleError(f"perm must name each of the {many(ndim, 'dim')} 0..{ndim - 1} once, got {perm}")
    return perm
