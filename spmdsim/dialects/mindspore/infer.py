"""``infer_layout`` of hyper-parallel's operators: from the operands' layouts to the result's.

The result is what the operator's rule says, pending reductions included. Where upstream accepts operands whose
local computation gives wrong values (a table split by rows without masking, a concatenation along a split dim, a
softmax of pending sums, operands that would have to be cut first) this refuses, or says what is pending.

>>> from spmdsim.dialects.mindspore import Layout
>>> layout = Layout((2, 4), ("dp", "mp"))
>>> infer_layout("MatMul", [layout("dp", "mp"), layout("mp", "None")]).short()
'S(0)P(sum)'
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import spmdsim.ops as ops
from spmdsim.dialects.mindspore.layout import check_even
from spmdsim.dialects.mindspore.operators import table
from spmdsim.errors import LayoutError, RuleError, SpmdError
from spmdsim.layout import Layout
from spmdsim.ops.reduce import normal_dims
from spmdsim.ops.shape import full_shape
from spmdsim.rules import BoundRule
from spmdsim.tensor.operator import Op

Shape = tuple[int, ...]
Args = Mapping[str, Any]

_REDUCE = {
    "sumext": "sum", "sum": "sum", "reducesum": "sum", "meanext": "sum", "mean": "sum", "reducemean": "sum",
    "prod": "prod", "prodext": "prod", "reduceprod": "prod", "max": "max", "reducemax": "max", "amax": "max",
    "min": "min", "reducemin": "min", "amin": "min", "all": "all", "reduceall": "all", "any": "any",
    "reduceany": "any",
}  # fmt: skip
_UNARY = ("elementwise", "activationwithaxis")


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
        args: its other arguments, such as ``{"dim": 1, "keepdim": True}``.
        input_shapes: global shapes; sizes that every axis divides are assumed if left out.

    Raises:
        ValueError: operands that cannot be combined as they are.
    """
    arguments = dict(args or {})
    given = [layout for layout in layouts if layout is not None]
    if not given:
        raise LayoutError(f"{operator} needs the layout of at least one operand")
    shapes = _shapes(given, arguments, input_shapes)
    name = operator.split("(")[0].strip()
    if input_shapes is None and "matmul" in name.lower():
        shapes = [_broadcast_batch(layout, shape, given) for layout, shape in zip(given, shapes)]
    if name == "Linear":
        return _linear(given, shapes)
    if name == "Embedding" and given[1].canonical.dims[0]:
        raise RuleError(
            f"{operator} takes no table that is split by rows, {given[1]}; the function embedding does, and its "
            f"result is then partial"
        )
    op, params, operands = _operator(name, shapes, arguments)
    if input_shapes is not None or "src_shape" in arguments:
        for i, (layout, shape) in enumerate(zip(given, shapes)):
            check_even(layout, shape, f"operand {i}")
    found = [given[i] for i in operands] if operands else given
    bound = op.bind([shapes[i] for i in operands] if operands else shapes, params)
    return bound.output_layouts(bound.infer(promoted(bound, found)))[0]


def promoted(bound: BoundRule, layouts: Sequence[Layout]) -> list[Layout]:
    """Replicated operands as pending ones, where the rule adds them to pending operands.

    This moves nothing: one rank of each group keeps the values, the others hold zeros. (Upstream divides them by
    the size of the group instead.)
    """
    made = list(layouts)
    for axis in dict.fromkeys(axis for layout in layouts for axis in layout.partial_axes):
        pending = {i for i, layout in enumerate(layouts) if axis in layout.partial_axes}
        for group in bound.rule.linear:
            others = group - pending
            if pending < group and all(axis in layouts[i].replicated_axes for i in others):
                op = dict(layouts[min(pending)].partial)[axis]
                for i in others:
                    made[i] = made[i].with_partial({**dict(made[i].partial), axis: op})
    return made


def _linear(layouts: Sequence[Layout], shapes: Sequence[Shape]) -> Layout:
    """``x @ weight.T + bias`` with weight ``[out, in]``: a bias is not added to a pending product."""
    op: Op = ops.matmul.op  # type: ignore[attr-defined]
    bound = op.bind(shapes[:2], {"transpose_b": True})
    product = bound.output_layouts(bound.infer(layouts[:2]))[0]
    if len(layouts) < 3:
        return product
    if product.partial:
        raise RuleError(
            f"the product is still to be summed over {list(product.partial_axes)}; added on every rank, the bias "
            "would be in the sum several times, so reduce the product first"
        )
    added = ops.add.op.bind([bound.output_shapes[0], shapes[2]], {})  # type: ignore[attr-defined]
    return added.output_layouts(added.infer([product, layouts[2]]))[0]


def _shapes(layouts: Sequence[Layout], args: Args, given: Sequence[Sequence[int]] | None) -> list[Shape]:
    if given is not None:
        if len(given) != len(layouts):
            raise LayoutError(f"{len(given)} shapes were given for {len(layouts)} operands")
        return [tuple(shape) for shape in given]
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
    first = name.split("/")[0]
    key = first.lower().replace("_", "")
    ndim = len(shapes[0])
    makers: dict[str, Callable[[], tuple[str, dict[str, Any]]]] = {
        "embedding": lambda: ("embedding", {}),
        "gather": lambda: (
            "gather",
            {"dim": normal_dims(int(args.get("axis", args.get("dim", 0))), ndim)[0]},
        ),
        "reshape": lambda: ("reshape", {"shape": full_shape(shapes[0], _wanted(args))}),
        "view": lambda: ("reshape", {"shape": full_shape(shapes[0], _wanted(args))}),
        "softmax": lambda: ("softmax", {"dim": normal_dims(args.get("dim", args.get("axis", -1)), ndim)}),
        "logsoftmax": lambda: (
            "log_softmax",
            {"dim": normal_dims(args.get("dim", args.get("axis", -1)), ndim)},
        ),
        "concat": lambda: (
            "concat",
            {"dim": normal_dims(int(args.get("dim", args.get("axis", 0))), ndim)[0]},
        ),
        "cat": lambda: ("concat", {"dim": normal_dims(int(args.get("dim", args.get("axis", 0))), ndim)[0]}),
        "permute": lambda: ("transpose", {"perm": _perm(args, ndim)}),
        "transpose": lambda: ("transpose", {"perm": _perm(args, ndim)}),
        "layernorm": lambda: ("layer_norm", {"epsilon": 0.0, "begin": -len(shapes[-1])}),
        "onehot": lambda: ("one_hot", {"depth": int(args.get("num_classes", 8)), "dtype": "f4"}),
    }
    if key in _REDUCE:
        dims = normal_dims(args.get("dim", args.get("axis")), ndim)
        keep = bool(args.get("keepdim", args.get("keepdims", args.get("keep_dims", False))))
        return getattr(ops, _REDUCE[key]).op, {"dims": dims, "keepdims": keep}, ()
    if key in ("rmsnorm", "rmsnormext"):
        return ops.rms_norm.op, {"epsilon": 0.0}, (0, 1)  # type: ignore[attr-defined]
    if key in makers:
        ours, params = makers[key]()
        return getattr(ops, ours).op, params, ()
    if key in _UNARY:
        return _elementwise(len(shapes)), {}, ()
    for known, row in table().items():
        if known.lower() == key:
            return row.op, row.params(shapes, args), ()
    try:
        return getattr(ops, key).op, {}, ()
    except AttributeError:
        raise RuleError(f"no operator {name!r} is known here") from None


def _elementwise(count: int) -> Op:
    """Any element-wise function of so many operands; one whose operands may be pending sums together."""
    if count == 1:
        return ops.relu.op  # type: ignore[attr-defined]
    if count == 2:
        return ops.add.op  # type: ignore[attr-defined]
    from spmdsim.rules import Rule

    rule = Rule.parse(f"{', '.join(['...'] * count)} -> ...")
    return Op("elementwise", rule, lambda *arrays: sum(arrays))


def _wanted(args: Args) -> Sequence[int]:
    found = args.get("dst_shape", args.get("shape"))
    if found is None:
        raise RuleError("Reshape needs dst_shape")
    return tuple(found)


def _perm(args: Args, ndim: int) -> tuple[int, ...]:
    perm = tuple(args.get("perm", args.get("dims", ())))
    try:
        normal = tuple(normal_dims(p, ndim)[0] for p in perm)
    except SpmdError as error:
        raise RuleError(f"perm {perm}: {error.message}") from None
    if sorted(normal) != list(range(ndim)):
        raise RuleError(f"perm {perm} is not an order of the {ndim} dims")
    return normal
