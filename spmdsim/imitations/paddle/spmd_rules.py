"""Paddle's SPMD rules: from the operands' dims_mappings to those an operator really wants, and its result's.

Paddle merges the mappings like the letters of an einsum and converts the operands that do not follow
(``paddle/phi/infermeta/spmd_rules/utils.cc``, ShardingMergeForTensors). The letters are the factors of our rules.

>>> from spmdsim.dialects.paddle import ProcessMesh
>>> mesh = ProcessMesh([[0, 1, 2], [3, 4, 5]])
>>> infer("matmul", mesh, [(64, 32), (32, 48)], [[1, 0], [0, -1]])
Inferred(inputs=([1, 0], [0, -1]), outputs=([1, -1],), partial_on=((0,),))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import spmdsim.ops as ops
from spmdsim.core import BoundRule, Layout, Strategy
from spmdsim.core.operator import Op
from spmdsim.dialects.paddle.process_mesh import ProcessMesh, dims_mapping, from_dims_mapping
from spmdsim.errors import LayoutError, RuleError
from spmdsim.imitations.paddle.rule_words import translated
from spmdsim.ops.windowed import in_blocks

Mapping = Sequence[int | Sequence[int]]


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
            f"{operator} takes {len(sizes)} operands by their shapes, but {len(mappings)} dims_mappings"
        )
    name, given = translated(operator, sizes, params)
    function = getattr(ops, name, None)
    if not isinstance(getattr(function, "op", None), Op):
        raise RuleError(f"no operator {operator!r} is known here")
    op: Op = function.op  # type: ignore[union-attr]
    try:
        bound = in_blocks(op.bind(sizes, given))
    except TypeError:
        raise RuleError(
            f"{operator} does not take {len(sizes)} operands with the attributes {given}"
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
    """The strategy in which every factor is split as some operand splits it.

    Raises:
        ValueError: a factor that two operands split differently, or a wrong number of operands.
    """
    if len(layouts) != len(bound.inputs):
        raise RuleError(f"the rule '{bound.rule}' takes {len(bound.inputs)} operands, not {len(layouts)}")
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
