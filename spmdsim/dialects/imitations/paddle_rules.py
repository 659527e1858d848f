"""Paddle's SPMD rules: from the operands' dims_mappings to those an operator really wants, and its result's.

Paddle merges the mappings like the letters of an einsum and converts the operands that do not follow
(``paddle/phi/infermeta/spmd_rules/utils.cc``, ShardingMergeForTensors). The letters are the factors of our rules; its
names of operators and attributes are translated first.

>>> from spmdsim.dialects.paddle import ProcessMesh
>>> mesh = ProcessMesh([[0, 1, 2], [3, 4, 5]])
>>> infer("matmul", mesh, [(64, 32), (32, 48)], [[1, 0], [0, -1]])
Inferred(inputs=([1, 0], [0, -1]), outputs=([1, -1],), partial_on=((0,),))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from spmdsim.arrays import Op, ops
from spmdsim.arrays.ops.windowed import in_blocks
from spmdsim.core import BoundRule, Layout, Strategy
from spmdsim.dialects.paddle.process_mesh import ProcessMesh, dims_mapping, from_dims_mapping
from spmdsim.errors import LayoutError, RuleError, many

Shape = tuple[int, ...]
Params = dict[str, Any]
Mapping = Sequence[int | Sequence[int]]
#: From shapes and Paddle's attributes, which are taken out, to our parameters.
Writer = Callable[[Sequence[Shape], Params], Params]

#: Paddle's names of what we call differently.
NAMES = {
    "abs": "absolute", "assign": "identity", "bmm": "matmul", "c_embedding": "embedding", "matmul_v2": "matmul",
    "lookup_table_v2": "embedding", "pow": "identity", "reshape2": "reshape", "scale": "identity", "swish": "silu",
    "transpose2": "transpose", "elementwise_add": "add", "elementwise_sub": "subtract", "elementwise_mul": "multiply",
    "elementwise_div": "divide", "elementwise_pow": "power", "elementwise_max": "maximum", "elementwise_min": "minimum",
}  # fmt: skip
#: A mean is pending like the sum that it is made of.
NAMES |= {"mean": "sum", "reduce_mean": "sum"}
_REDUCTIONS = ("sum", "max", "min", "prod", "all", "any")
NAMES |= {f"reduce_{name}": name for name in _REDUCTIONS}


def translated(operator: str, shapes: Sequence[Shape], params: Params) -> tuple[str, Params]:
    """Our name of an operator, and its parameters as our rule takes them."""
    attrs = dict(params)
    if operator == "flatten":
        return "reshape", {"shape": _flattened(shapes[0], attrs)}
    if operator in ("squeeze", "unsqueeze"):
        return "reshape", {"shape": _squeezed(operator, shapes[0], attrs)}
    if operator in ("scale", "pow", "cast", "dropout", "assign"):
        return NAMES.get(operator, "identity"), {}
    name = NAMES.get(operator, operator)
    write = _WRITERS.get("reduction" if name in _REDUCTIONS else name, _plain)
    attributes = write(shapes, attrs)
    if attrs:
        raise RuleError(f"{operator} has no attribute {', '.join(map(repr, attrs))} here")
    return name, attributes


def _axis(value: int, ndim: int) -> int:
    if not -ndim <= value < ndim:
        raise RuleError(f"axis {value} is out of range for a tensor of {many(ndim, 'dim')}")
    return value % ndim


def _first(attrs: Params, names: str, default: Any) -> Any:
    """The attribute under the first of its names that is given."""
    values = [attrs.pop(name) for name in names.split() if name in attrs]
    return values[0] if values else default


def _plain(_shapes: Sequence[Shape], attrs: Params) -> Params:
    # A name says nothing about the rule, and an axis of -1 is how Paddle asks for numpy's broadcasting.
    attrs.pop("name", None)
    if attrs.get("axis") == -1:
        del attrs["axis"]
    params = dict(attrs)
    attrs.clear()
    return params


def _matmul(_shapes: Sequence[Shape], attrs: Params) -> Params:
    a = _first(attrs, "trans_x transpose_x transpose_a", False)
    b = _first(attrs, "trans_y transpose_y transpose_b", False)
    return {"transpose_a": bool(a), "transpose_b": bool(b)}


def _reduction(shapes: Sequence[Shape], attrs: Params) -> Params:
    ndim = len(shapes[0])
    axis = _first(attrs, "axis dim dims", None)
    axes: list[int] = [axis] if isinstance(axis, int) else list(axis or range(ndim))
    if _first(attrs, "reduce_all", False):
        axes = list(range(ndim))
    keep = bool(_first(attrs, "keepdim keep_dim keepdims", False))
    return {"dims": tuple(sorted({_axis(a, ndim) for a in axes})), "keepdims": keep}


def _one_dim(default: int) -> Writer:
    def write(shapes: Sequence[Shape], attrs: Params) -> Params:
        return {"dim": _axis(_first(attrs, "axis dim", default), len(shapes[0]))}

    return write


def _norm(shapes: Sequence[Shape], attrs: Params) -> Params:
    begin = _axis(_first(attrs, "begin_norm_axis begin", -1), len(shapes[0]))
    return {"epsilon": _first(attrs, "epsilon", 1e-5), "begin": begin - len(shapes[0])}


def _transposed(shapes: Sequence[Shape], attrs: Params) -> Params:
    ndim = len(shapes[0])
    perm = tuple(_axis(a, ndim) for a in _first(attrs, "perm axis", range(ndim)[::-1]))
    if sorted(perm) != list(range(ndim)):
        raise RuleError(f"perm names each of {many(ndim, 'dim')} once, but got {list(perm)}")
    return {"perm": perm}


def _reshaped(shapes: Sequence[Shape], attrs: Params) -> Params:
    """A 0 copies the dim, one -1 takes what is left."""
    old = shapes[0]
    wanted = _first(attrs, "shape", None)
    if wanted is None:
        raise RuleError("reshape needs the attribute shape")
    if any(n == 0 and k >= len(old) for k, n in enumerate(wanted)) or list(wanted).count(-1) > 1:
        raise RuleError(f"{tuple(old)} cannot be reshaped to {tuple(wanted)}")
    new = [old[k] if n == 0 else n for k, n in enumerate(wanted)]
    if -1 in new:
        rest = math.prod(n for n in new if n != -1)
        new[new.index(-1)] = math.prod(old) // rest if rest else 0
    if math.prod(new) != math.prod(old):
        raise RuleError(f"{tuple(old)} cannot be reshaped to {tuple(wanted)}")
    return {"shape": tuple(new)}


def _flattened(shape: Shape, attrs: Params) -> Shape:
    first = _axis(_first(attrs, "start_axis", 0), len(shape))
    last = _axis(_first(attrs, "stop_axis", -1), len(shape))
    if first > last:
        raise RuleError(f"start_axis {first} comes after stop_axis {last}")
    return (*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :])


def _squeezed(operator: str, shape: Shape, attrs: Params) -> Shape:
    axis = _first(attrs, "axis axes", None)
    axes = [axis] if isinstance(axis, int) else list(axis or [])
    if operator == "squeeze":
        gone = {_axis(a, len(shape)) for a in axes} if axes else set(range(len(shape)))
        return tuple(n for k, n in enumerate(shape) if n != 1 or k not in gone)
    new = list(shape)
    for a in axes:
        new.insert(_axis(a, len(new) + 1), 1)
    return tuple(new)


_WRITERS: dict[str, Writer] = {
    **dict.fromkeys(("softmax", "log_softmax", "argmax", "argmin"), _one_dim(-1)),
    **dict.fromkeys(("concat", "gather"), _one_dim(0)),
    "matmul": _matmul,
    "reduction": _reduction,
    "layer_norm": _norm,
    "transpose": _transposed,
    "reshape": _reshaped,
}


@dataclass(frozen=True)
class Inferred:
    """What a rule makes of dims_mappings.

    Args:
        inputs: the mappings in which the operands are needed; where one differs from what was given, that operand
            is converted first.
        outputs: the results' mappings.
        partial_on: per result the mesh dims over which it is still to be reduced.
    """

    inputs: tuple[list[Any], ...]
    outputs: tuple[list[Any], ...]
    partial_on: tuple[tuple[int, ...], ...]


def infer(
    operator: str,
    mesh: ProcessMesh,
    shapes: Sequence[Sequence[int]],
    mappings: Sequence[Mapping],
    *,
    padding_idx: int | None = None,
    sparse: bool = False,
    **params: Any,
) -> Inferred:
    """Merge the operands' dims_mappings by the operator's rule.

    A letter split in one operand is split in all. A mesh dim that would split two letters keeps the first; a letter
    that must stay whole is not split at all.

    Args:
        operator: the operator, by our name or Paddle's.
        mesh: the process mesh.
        shapes: global shapes of the operands.
        mappings: their dims_mappings.
        padding_idx: an embedding's padding index, which forbids splitting its rows.
        sparse: sparse gradients of an embedding, which do, too.
        **params: attributes of the operator, by Paddle's names (``trans_x``, ``axis``, ``keepdim``, ``perm``, ...).

    Raises:
        ValueError: a letter split by two different mesh dims; rows split that must not be; unfit mappings.
    """
    sizes = [tuple(shape) for shape in shapes]
    if not sizes or len(sizes) != len(mappings):
        raise RuleError(
            f"{operator} takes {many(len(sizes), 'operand')} by their shapes, but {len(mappings)} dims_mappings"
        )
    name, attrs = translated(operator, sizes, params)
    function = getattr(ops, name, None)
    if not isinstance(getattr(function, "op", None), Op):
        raise RuleError(f"no operator {operator!r} is known here")
    op: Op = function.op  # type: ignore[union-attr]
    try:
        bound = in_blocks(op.bind(sizes, attrs))
    except TypeError:
        raise RuleError(
            f"{operator} does not take {many(len(sizes), 'operand')} with the attributes {attrs}"
        ) from None
    layouts = [from_dims_mapping(mesh, mapping) for mapping in mappings]
    strategy = merged(bound, layouts)
    if strategy.parts("v") > 1 and name == "embedding" and (padding_idx not in (None, -1) or sparse):
        raise LayoutError(
            "rows of a table cannot be split together with "
            + ("sparse gradients" if sparse else f"padding_idx={padding_idx}")
        )
    outputs = bound.output_layouts(strategy)
    index = mesh.to_mesh().axes.index
    return Inferred(
        tuple(dims_mapping(layout) for layout in bound.input_layouts(strategy)),
        tuple(dims_mapping(layout) for layout in outputs),
        tuple(tuple(index(axis) for axis in layout.partial_axes) for layout in outputs),
    )


def merged(bound: BoundRule, layouts: Sequence[Layout]) -> Strategy:
    """The strategy in which every factor is split as some operand splits it."""
    if len(layouts) != len(bound.inputs):
        raise RuleError(
            f"the rule '{bound.rule}' takes {many(len(bound.inputs), 'operand')}, not {len(layouts)}"
        )
    splits: dict[str, tuple[str, ...]] = {}
    used: dict[str, str] = {}
    for i, (term, shape, layout) in enumerate(zip(bound.inputs, bound.shapes, layouts)):
        layout.check_shape(shape)
        for factors, axes in zip(term, layout.dims):
            if not factors or not axes or factors[0] in bound.rule.whole:
                continue
            factor = factors[0]
            if splits.get(factor, axes) != axes:
                raise RuleError(
                    f"factor {factor!r} of the rule '{bound.rule}' is split by {splits[factor]} and, in operand {i}, "
                    f"by {axes}; both must be the same"
                )
            splits[factor] = axes
            for axis in axes:
                used.setdefault(axis, factor)
    kept = {f: tuple(a for a in axes if used[a] == f) for f, axes in splits.items()}
    strategy = Strategy.of(layouts[0].mesh, kept)
    bound.check(strategy)
    return strategy
