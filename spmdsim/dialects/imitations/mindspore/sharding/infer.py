"""``infer_layout`` of hyper-parallel's operators: from the operands' layouts to the result's.

The result is what the operator's rule says, pending reductions included. An operand of an element-wise function
that is whole where another one is split is cut first, which moves nothing; its shape must be given then, because a
dim of size one is not cut. Where upstream accepts operands whose local computation gives wrong values (a table split
by rows without masking, a concatenation along a split dim, a softmax of pending sums) this refuses, or says what is
pending.

>>> from spmdsim.dialects.mindspore import Layout
>>> layout = Layout((2, 4), ("dp", "mp"))
>>> infer_layout("MatMul", [layout("dp", "mp"), layout("mp", "None")]).short()
'S(0)P(sum)'
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spmdsim.arrays import Op
from spmdsim.arrays.ops.dim_reductions import normal_dims
from spmdsim.arrays.ops.shape import full_shape
from spmdsim.core import BoundRule, Layout
from spmdsim.dialects.imitations.mindspore.map_layouts import Shape
from spmdsim.dialects.imitations.mindspore.sharding.sharded import bind, check_operands
from spmdsim.dialects.mindspore.operators import TABLE
from spmdsim.dialects.mindspore.table import OperatorRow, our_operator
from spmdsim.errors import LayoutError, RuleError, many

Args = Mapping[str, Any]

_UNARY = ("elementwise", "activationwithaxis")
#: Functions of one tensor, whose further operands lie as it does.
_OF_ONE_OPERAND = ("softmax", "logsoftmax", "activationwithaxis")


def infer_layout(
    operator: str,
    layouts: Sequence[Layout | None],
    args: Args | None = None,
    input_shapes: Sequence[Sequence[int]] | None = None,
) -> Layout:
    """The layout of an operator's result.

    Args:
        operator: its name there, or MindSpore's.
        layouts: one per operand; None for an operand that is absent (a bias).
        args: its other arguments, such as ``{"dim": 1, "keepdim": True}``; a size of ``src_shape`` may be -1, which
            is any size that divides.
        input_shapes: global shapes; sizes that every axis divides are assumed if left out.

    Raises:
        ValueError: operands that cannot be combined as they are.
    """
    arguments = dict(args or {})
    present = [layout for layout in layouts if layout is not None]
    if not present:
        raise LayoutError(f"{operator} needs the layout of at least one operand")
    if -1 in arguments.get("src_shape", ()):
        return _of_any_size(operator, present, arguments)
    if input_shapes is not None and len(input_shapes) == len(layouts):
        input_shapes = [shape for shape, layout in zip(input_shapes, layouts) if layout is not None]
    shapes = _shapes(present, arguments, input_shapes)
    name = operator.split("(")[0].strip()
    key = _key(name)
    if input_shapes is None and "matmul" in name.lower():
        shapes = [_broadcast_batch(layout, shape, present) for layout, shape in zip(present, shapes)]
    if name == "Linear":
        return _linear(present, shapes)
    if name == "Embedding" and len(present) > 1 and present[1].canonical.dims[0]:
        raise RuleError(
            f"{operator} takes no table that is split by rows, {present[1]}; the function embedding does, and its "
            f"result is then partial"
        )
    if key in _OF_ONE_OPERAND:
        present, shapes = _only(operator, present), shapes[:1]
    op, params, operands = _operator(name, shapes, arguments)
    if input_shapes is not None or "src_shape" in arguments:
        present = [_without_outer(layout, shape) for layout, shape in zip(present, shapes)]
        check_operands(present, shapes)
    taken = [present[i] for i in operands] if operands else present
    bound = bind(op, [shapes[i] for i in operands] if operands else shapes, params)
    if input_shapes is not None and (key in _UNARY or (name in TABLE and TABLE[name].elements)):
        taken = cut_first(bound, taken)
    return bound.output_layouts(bound.infer(promote_types(bound, taken)))[0]


def cut_first(bound: BoundRule, layouts: Sequence[Layout]) -> list[Layout]:
    """Operands that are whole along a factor, cut as the operand is that is split along it: a local slice."""
    axes: dict[str, tuple[str, ...]] = {}
    for term, layout in zip(bound.inputs, layouts):
        for dim, entry in zip(term, layout.canonical.dims):
            if dim and entry:
                axes.setdefault(dim[0], entry)
    cut = []
    for term, layout in zip(bound.inputs, layouts):
        free = set(layout.replicated_axes)
        dims = [
            axes[dim[0]] if dim and not entry and free.issuperset(axes.get(dim[0], ("",))) else entry
            for dim, entry in zip(term, layout.canonical.dims)
        ]
        cut.append(Layout(layout.mesh, dims, layout.partial))
    return cut


def _of_any_size(operator: str, layouts: Sequence[Layout], args: Args) -> Layout:
    """The layout of a reshape of an unknown size: the same for two sizes that have to divide and nothing more."""
    src, dst = tuple(args["src_shape"]), _wanted(args)
    if src.count(-1) > 1 or layouts[0].ndim != len(src):
        raise RuleError(f"one size of src_shape may be -1, and it has the layout's dims, but got {src}")
    at = src.index(-1)
    product, new = (math.prod(n for n in shape if n != -1) for shape in (src, dst))
    least = math.lcm(layouts[0].parts[at], new // math.gcd(new, product))
    results = []
    for prime in (101, 103):
        shape = [*src[:at], least * prime, *src[at + 1 :]]
        results.append(infer_layout(operator, layouts, {**args, "src_shape": shape}))
    if results[0] != results[1]:
        raise RuleError(f"the layout of the result depends on the unknown size of {src}")
    return results[0]


def _only(operator: str, layouts: Sequence[Layout]) -> list[Layout]:
    if any(layout != layouts[0] for layout in layouts):
        raise RuleError(
            f"the operands of {operator} must have the same layout, but got {', '.join(map(str, layouts))}"
        )
    return [layouts[0]]


def _without_outer(layout: Layout, shape: Shape) -> Layout:
    """A layout without the leading dims that the shape lacks (a number has none), if they are whole."""
    extra = layout.ndim - len(shape)
    if extra <= 0 or any(layout.canonical.dims[:extra]):
        return layout
    return Layout(layout.mesh, layout.dims[extra:], layout.partial)


def promote_types(bound: BoundRule, layouts: Sequence[Layout]) -> list[Layout]:
    """Replicated operands as pending ones, where the rule adds them to pending operands.

    This moves nothing: one rank of each group keeps the values, the others hold zeros. (Upstream divides them by
    the size of the group instead.)
    """
    partial = list(layouts)
    for axis in dict.fromkeys(axis for layout in layouts for axis in layout.partial_axes):
        holders = {i for i, layout in enumerate(layouts) if axis in layout.partial_axes}
        for group in bound.rule.linear:
            others = group - holders
            if holders < group and all(axis in layouts[i].replicated_axes for i in others):
                op = dict(layouts[min(holders)].partial)[axis]
                for i in others:
                    partial[i] = partial[i].with_partial({**dict(partial[i].partial), axis: op})
    return partial


def _linear(layouts: Sequence[Layout], shapes: Sequence[Shape]) -> Layout:
    """``x @ weight.T + bias`` with weight ``[out, in]``: a bias is not added to a pending product."""
    bound = our_operator("matmul").bind(shapes[:2], {"transpose_b": True})
    product = bound.output_layouts(bound.infer(layouts[:2]))[0]
    if len(layouts) < 3:
        return product
    if product.partial:
        raise RuleError(
            f"the product is still to be summed over {list(product.partial_axes)}; added on every rank, the bias "
            "would be in the sum several times, so reduce the product first"
        )
    added = our_operator("add").bind([bound.output_shapes[0], shapes[2]], {})
    return added.output_layouts(added.infer([product, layouts[2]]))[0]


def _shapes(layouts: Sequence[Layout], args: Args, shapes: Sequence[Sequence[int]] | None) -> list[Shape]:
    if shapes is not None:
        if len(shapes) != len(layouts):
            raise LayoutError(
                f"{many(len(shapes), 'shape was', 'shapes were')} given for {many(len(layouts), 'operand')}"
            )
        return [tuple(shape) for shape in shapes]
    if "src_shape" in args:
        return [tuple(args["src_shape"])]
    size = max(layout.mesh.size for layout in layouts)
    return [(size,) * layout.ndim for layout in layouts]


def _broadcast_batch(layout: Layout, shape: Shape, layouts: Sequence[Layout]) -> Shape:
    """Size 1 for a batch dim that is whole here but split in another operand: it is broadcast."""
    sizes = list(shape)
    for back in range(3, layout.ndim + 1):
        split = any(other.ndim >= back and other.canonical.dims[-back] for other in layouts)
        if split and not layout.canonical.dims[-back]:
            sizes[-back] = 1
    return tuple(sizes)


def _operator(name: str, shapes: Sequence[Shape], args: Args) -> tuple[Op, dict[str, Any], tuple[int, ...]]:
    """Our operator, its parameters, and which operands it takes (all if empty)."""
    key, ndim = _key(name), len(shapes[0])
    row = _rows().get(key)
    otherwise: dict[str, Callable[[], dict[str, Any]]] = {
        "Reshape": lambda: {"shape": full_shape(shapes[0], _wanted(args))},
        "Transpose": lambda: {"perm": _perm(args, ndim)},
        "LayerNorm": lambda: {"epsilon": 0.0, "begin": -len(shapes[-1])},
        "OneHot": lambda: {"depth": int(args.get("num_classes", 8)), "dtype": "f4"},
        "RmsNorm": lambda: {"epsilon": 0.0},
    }
    if key in _UNARY:
        return _elementwise(len(shapes)), {}, ()
    if row is not None:
        first = row.known_as[0]
        attributes = {**args, "axis": args["dim"]} if "dim" in args else args
        params = otherwise[first]() if first in otherwise else row.strategy_params(shapes, attributes)
        return (
            our_operator(row.ours) if first == "Reshape" else row.op,
            params,
            (0, 1) if first == "RmsNorm" else (),
        )
    try:
        return our_operator(key), {}, ()
    except AttributeError:
        raise RuleError(f"no operator {name!r} is known here") from None


def _key(name: str) -> str:
    return name.split("/")[0].strip().lower().replace("_", "")


def _rows() -> dict[str, OperatorRow]:
    """The rows by their names here: MindSpore's or hyper-parallel's, in lower case."""
    rows = [row for row in TABLE.values() if row.strategies in ("rule", "gather")]
    return {_key(name): row for row in rows for name in (*row.known_as, *row.aliases.split())}


def _elementwise(count: int) -> Op:
    """Any element-wise function of so many operands; one whose operands may be pending sums together."""
    if count == 1:
        return our_operator("relu")
    if count == 2:
        return our_operator("add")
    from spmdsim.core import Rule

    rule = Rule.parse(f"{', '.join(['...'] * count)} -> ...")
    return Op("elementwise", rule, lambda *arrays: sum(arrays))


def _wanted(args: Args) -> Sequence[int]:
    sizes = args.get("dst_shape", args.get("shape"))
    if sizes is None:
        raise RuleError("Reshape needs dst_shape")
    return tuple(sizes)


def _perm(args: Args, ndim: int) -> tuple[int, ...]:
    """The order of dims: ``perm``, counted from 0 as upstream wants it, or ``dim0`` and ``dim1`` exchanged."""
    if "dim0" in args:
        one, other = normal_dims((args["dim0"], args["dim1"]), ndim)
        return tuple(other if d == one else one if d == other else d for d in range(ndim))
    perm = tuple(args.get("perm", args.get("dims", ())))
    if sorted(perm) != list(range(ndim)):
        raise RuleError(f"perm {perm} is not an order of the {many(ndim, 'dim')}, 0..{ndim - 1}")
    return perm
