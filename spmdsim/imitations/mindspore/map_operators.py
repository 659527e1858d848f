"""MindSpore's operators of a redistribution on one rank: Reshape, AllConcat, AllToAll, StridedSlice.

An AllConcat over a group along a dim is written ``[*group, dim]``; MindSpore runs it as AllGather, which always
concatenates dim 0, and for other dims Split and Concat after it. A StridedSlice is ``[*begin, *end, *strides]``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from spmdsim.errors import PlanError
from spmdsim.imitations.mindspore.infer_operators import Abstract, infer_operators
from spmdsim.imitations.mindspore.unify import MapLayout, NotExpandable, Shape, Written, as_numbers, unify


class MapOperator(NamedTuple):
    """A concrete operator: its name and arguments.

    Attributes:
        name: ``Reshape``, ``AllConcat``, ``AllToAll``, ``StridedSlice`` or ``Broadcast``.
        args: as MindSpore writes them; for AllToAll a dict of group, split_dim, concat_dim and count, for Broadcast the
            root, then the group.
    """

    name: str
    args: Any

    def plain(self) -> list[Any]:
        """``[name, args]``; ``["Broadcast", root, group]``."""
        if self.name == "Broadcast":
            return [self.name, self.args[0], self.args[1:]]
        return [self.name, self.args]


def operators(
    before: MapLayout | Written,
    after: MapLayout | Written,
    rank: int,
    ranks: Sequence[int] | None = None,
    all2all: bool = False,
) -> list[MapOperator]:
    """The operators of ``rank``, without the reordering of :mod:`~spmdsim.imitations.mindspore.reorder`.

    Args:
        before: the layout (and shape) before, also as three lists; several axes on a dim make it several dims.
        after: the layout (and shape) after.
        rank: the rank.
        ranks: the rank list; ``0 ..`` if left out.
        all2all: whether AllToAll may be used.

    Raises:
        PlanError: numbers that are no layout, layouts for different numbers of devices, or another rank list.

    >>> ops = operators(MapLayout((8,), (0, -1), (32, 256)), MapLayout((4, 2), (1, -1), (32, 256)), 0)
    >>> [op.plain() for op in ops]
    [['Reshape', [1, 4, 256]], ['AllConcat', [0, 1, 1]], ['Reshape', [8, 256]]]
    """
    before, after = as_numbers(before), as_numbers(after)
    ranks = _checked_ranks(before, after, rank, ranks)
    try:
        one, other = unify(before, after)
    except NotExpandable:
        return _gather_all(before, after, rank, ranks)
    operators_found = infer_operators(one.matrix, one.map, other.map, all2all)
    first = [MapOperator("Reshape", list(one.slice_shape))] if one.slice_shape != before.slice_shape else []
    middle = concrete(operators_found, one.matrix, one.slice_shape, rank, ranks)
    last = [MapOperator("Reshape", list(after.slice_shape))] if other.slice_shape != after.slice_shape else []
    return [*first, *middle, *last]


def _checked_ranks(before: MapLayout, after: MapLayout, rank: int, ranks: Sequence[int] | None) -> list[int]:
    devices, others = math.prod(before.matrix), math.prod(after.matrix)
    if devices != others:
        raise PlanError(
            f"the device matrices {list(before.matrix)} and {list(after.matrix)} have {devices} and {others} devices"
        )
    rank_list = list(range(devices)) if ranks is None else list(ranks)
    if len(rank_list) != devices or len(set(rank_list)) < devices:
        raise PlanError(
            f"a rank list for {list(before.matrix)} has {devices} ranks, each once, not {rank_list}"
        )
    if rank not in rank_list:
        raise PlanError(f"rank {rank} is not in the rank list {rank_list}")
    return rank_list


def is_expandable(before: MapLayout | Written, after: MapLayout | Written) -> bool:
    """Whether MindSpore finds a common form, or has to gather everything."""
    try:
        unify(before, after)
    except NotExpandable:
        return False
    return True


def concrete(
    abstract: Sequence[Abstract], matrix: Shape, local: Shape, rank: int, ranks: Sequence[int]
) -> list[MapOperator]:
    """Inferred operators with the groups and slices of one rank.

    Args:
        abstract: the inferred operators.
        matrix: the device matrix they refer to.
        local: the local shape before.
        rank: the rank.
        ranks: the rank list.
    """
    shape, out = list(local), []
    for op in abstract:
        group, index = _group(matrix, op.axis, rank, ranks)
        if op.name == "Split":
            shape[op.dim] //= op.parts
            begin, end = [0] * len(shape), list(shape)
            begin[op.dim], end[op.dim] = index * shape[op.dim], (index + 1) * shape[op.dim]
            out.append(MapOperator("StridedSlice", [*begin, *end, *[1] * len(shape)]))
        elif op.name == "Concat":
            shape[op.dim] *= op.parts
            out.append(MapOperator("AllConcat", [*group, op.dim]))
        else:
            shape[op.dim] //= op.parts
            shape[op.concat_dim] *= op.parts
            args = {"group": group, "split_dim": op.dim, "concat_dim": op.concat_dim, "count": op.parts}
            out.append(MapOperator("AllToAll", args))
    return out


def _gather_all(before: MapLayout, after: MapLayout, rank: int, ranks: Sequence[int]) -> list[MapOperator]:
    """What MindSpore does without a common form: gather all dims, reshape, slice all dims."""
    nothing = (-1,) * len(before.map)
    gathers = infer_operators(before.matrix, _without_ones(before), nothing)
    out = concrete(gathers, before.matrix, before.slice_shape, rank, ranks)
    if before.shape != after.shape:
        out.append(MapOperator("Reshape", list(after.shape)))
    slices = infer_operators(after.matrix, (-1,) * len(after.map), _without_ones(after))
    return out + concrete(slices, after.matrix, after.shape, rank, ranks)


def _without_ones(layout: MapLayout) -> Shape:
    return tuple(axis if layout.axis_size(axis) > 1 else -1 for axis in layout.map)


def _group(matrix: Shape, axis: int, rank: int, ranks: Sequence[int]) -> tuple[list[int], int]:
    """The ranks along an axis (from the right) through ``rank``, and the rank's number among them."""
    left = len(matrix) - 1 - axis
    stride, size = math.prod(matrix[left + 1 :]), matrix[left]
    position = ranks.index(rank)
    index = position // stride % size
    base = position - index * stride
    return [ranks[base + k * stride] for k in range(size)], index


def names(ops: Sequence[MapOperator]) -> list[str]:
    """The names of the operators that run: an AllConcat along a dim beyond 0 takes three."""
    out: list[str] = []
    for op in ops:
        if op.name == "AllConcat":
            out += ["AllGather"] if op.args[-1] == 0 else ["AllGather", "Split", "Concat"]
        else:
            out.append(op.name)
    return out


def after_operator(op: MapOperator, shape: Sequence[int]) -> list[int]:
    """The local shape after an operator."""
    out = list(shape)
    if op.name == "Reshape":
        return list(op.args)
    if op.name == "AllConcat":
        out[op.args[-1]] *= len(op.args) - 1
    elif op.name == "AllToAll":
        out[op.args["split_dim"]] //= op.args["count"]
        out[op.args["concat_dim"]] *= op.args["count"]
    elif op.name == "StridedSlice":
        out = [end - begin for begin, end in zip(op.args, op.args[len(out) :][: len(out)])]
    elif op.name == "Slice":
        out[op.args[0]] //= op.args[1]
    return out


def received_elements(ops: Sequence[MapOperator], local: Sequence[int]) -> int:
    """Elements a rank receives in a list of operators that starts from a local shape."""
    shape, total = list(local), 0
    for op in ops:
        if op.name == "AllConcat":
            total += (len(op.args) - 2) * math.prod(shape)
        elif op.name == "AllToAll":
            total += math.prod(shape) * (op.args["count"] - 1) // op.args["count"]
        shape = after_operator(op, shape)
    return total
