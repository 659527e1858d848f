"""MindSpore's operators of a redistribution on one rank, what it thinks they cost, and both beside our plan.

An AllConcat over a group along a dim is written ``[*group, dim]``; MindSpore runs it as AllGather, which always
concatenates dim 0, and for other dims Split and Concat after it. A StridedSlice is ``[*begin, *end, *strides]``. Costs
(``TensorRedistribution::ComputeCost``) are volumes as its model counts them, not as they are: an AllGather counts half of
what it gathers, an AllToAll twice the slice however many ranks take part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from spmdsim.dialects.imitations.mindspore.map_layouts import (
    Abstract,
    AnyLayout,
    MapLayout,
    NotExpandable,
    Shape,
    Sizes,
    as_numbers,
    infer_operators,
    unify,
)
from spmdsim.errors import PlanError, many
from spmdsim.redistribution.plans.plan_table import bytes_text
from spmdsim.redistribution.plans.planner import Plan


class MapOperator(NamedTuple):
    """A concrete operator: Reshape, AllConcat, AllToAll, StridedSlice or Broadcast, and its arguments as MindSpore writes them.

    Those of AllToAll are a dict of group, split_dim, concat_dim and count, those of Broadcast the root, then the group.
    """

    name: str
    args: Any

    def plain(self) -> list[Any]:
        """``[name, args]``; ``["Broadcast", root, group]``."""
        if self.name == "Broadcast":
            return [self.name, self.args[0], self.args[1:]]
        return [self.name, self.args]


def operators(
    before: AnyLayout, after: AnyLayout, rank: int, ranks: Sizes | None = None, all2all: bool = False
) -> list[MapOperator]:
    """The operators of ``rank``, without the reordering of offline transforms.

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
    inferred = infer_operators(one.matrix, one.map, other.map, all2all)
    middle = concrete(inferred, one.matrix, one.slice_shape, rank, ranks)
    first = reshaped(before.slice_shape, one.slice_shape)
    return [*first, *middle, *reshaped(other.slice_shape, after.slice_shape)]


def reshaped(before: Shape, after: Shape) -> list[MapOperator]:
    """A Reshape between two local shapes, if they differ."""
    return [] if before == after else [MapOperator("Reshape", list(after))]


def sliced(shape: Sizes, dim: int, index: int) -> MapOperator:
    """The StridedSlice that leaves a local shape: part number ``index`` of a dim."""
    begin, end = [0] * len(shape), list(shape)
    begin[dim], end[dim] = index * shape[dim], (index + 1) * shape[dim]
    return MapOperator("StridedSlice", [*begin, *end, *[1] * len(shape)])


def _checked_ranks(before: MapLayout, after: MapLayout, rank: int, ranks: Sizes | None) -> list[int]:
    devices, others = math.prod(before.matrix), math.prod(after.matrix)
    if devices != others:
        raise PlanError(
            f"the device matrices {list(before.matrix)} and {list(after.matrix)} have {devices} and {many(others, 'device')}"
        )
    rank_list = list(range(devices)) if ranks is None else list(ranks)
    if len(rank_list) != devices or len(set(rank_list)) < devices:
        raise PlanError(
            f"a rank list for {list(before.matrix)} has {many(devices, 'rank')}, each once, not {rank_list}"
        )
    if rank not in rank_list:
        raise PlanError(f"rank {rank} is not in the rank list {rank_list}")
    return rank_list


def is_expandable(before: AnyLayout, after: AnyLayout) -> bool:
    """Whether MindSpore finds a common form, or has to gather everything."""
    try:
        unify(before, after)
    except NotExpandable:
        return False
    return True


def concrete(
    abstract: Sequence[Abstract], matrix: Shape, local: Shape, rank: int, ranks: Sizes
) -> list[MapOperator]:
    """Inferred operators with the groups and slices of one rank."""
    shape, out = list(local), []
    for op in abstract:
        group, index = _group(matrix, op.axis, rank, ranks)
        if op.name == "Split":
            shape[op.dim] //= op.parts
            out.append(sliced(shape, op.dim, index))
        elif op.name == "Concat":
            shape[op.dim] *= op.parts
            out.append(MapOperator("AllConcat", [*group, op.dim]))
        else:
            shape[op.dim] //= op.parts
            shape[op.concat_dim] *= op.parts
            args = {"group": group, "split_dim": op.dim, "concat_dim": op.concat_dim, "count": op.parts}
            out.append(MapOperator("AllToAll", args))
    return out


def _gather_all(before: MapLayout, after: MapLayout, rank: int, ranks: Sizes) -> list[MapOperator]:
    """What MindSpore does without a common form: gather all dims, reshape, slice all dims."""
    nothing = (-1,) * len(before.map)
    gathers = infer_operators(before.matrix, _without_ones(before), nothing)
    out = concrete(gathers, before.matrix, before.slice_shape, rank, ranks)
    out += reshaped(before.shape, after.shape)
    slices = infer_operators(after.matrix, (-1,) * len(after.map), _without_ones(after))
    return out + concrete(slices, after.matrix, after.shape, rank, ranks)


def _without_ones(layout: MapLayout) -> Shape:
    return tuple(axis if layout.axis_size(axis) > 1 else -1 for axis in layout.map)


def _group(matrix: Shape, axis: int, rank: int, ranks: Sizes) -> tuple[list[int], int]:
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


def after_operator(op: MapOperator, shape: Sizes) -> list[int]:
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


def received_elements(ops: Sequence[MapOperator], local: Sizes) -> int:
    """Elements a rank receives in a list of operators that starts from a local shape."""
    shape, total = list(local), 0
    for op in ops:
        if op.name == "AllConcat":
            total += (len(op.args) - 2) * math.prod(shape)
        elif op.name == "AllToAll":
            total += math.prod(shape) * (op.args["count"] - 1) // op.args["count"]
        shape = after_operator(op, shape)
    return total


ALL_TO_ALL_SCALE = 2.0
ALL_GATHER_SCALE = 0.5
COST_FACTOR = 2.0


class MapCost(NamedTuple):
    """A cost in elements times the type length: communication, elements touched, and elements of buffers."""

    forward: float
    backward: float
    computation: float
    memory: float

    @property
    def communication(self) -> float:
        """Forward and backward together."""
        return self.forward + self.backward


def operator_cost(name: str, elements: int, count: int = 1, dim: int = 0, nbytes: int = 1) -> MapCost:
    """The cost of a Split, Concat or AllToAll (also called Permute) of a slice of so many elements.

    Of a ``dim`` beyond 0 that is concatenated, the values are copied once more.
    """
    whole = elements * count
    copies = elements if dim == 0 else elements + COST_FACTOR * whole
    if name == "Concat":
        # A concat also adds what a split costs, which the original's own comment doubts.
        memory = (whole if dim == 0 else copies) + elements
        forward, backward = whole * ALL_GATHER_SCALE, elements * ALL_GATHER_SCALE
        one = MapCost(forward, backward, copies + elements, memory)
    elif name in ("AllToAll", "Permute"):
        moved = elements * ALL_TO_ALL_SCALE
        one = MapCost(moved, moved, copies + elements, copies + elements)
    else:
        one = MapCost(0.0, 0.0, elements, elements)
    return MapCost(*(value * nbytes for value in one))


def list_cost(ops: Sequence[MapOperator], local: Sizes, nbytes: int = 1) -> MapCost:
    """The cost of a list of operators that starts from a local shape."""
    total = [0.0, 0.0, 0.0, 0.0]
    shape = list(local)
    for op in ops:
        elements = math.prod(shape)
        if op.name == "Reshape":
            one = MapCost(0.0, 0.0, COST_FACTOR * elements * nbytes, COST_FACTOR * elements * nbytes)
        elif op.name == "AllConcat":
            one = operator_cost("Concat", elements, len(op.args) - 1, op.args[-1], nbytes)
        elif op.name == "AllToAll":
            one = operator_cost("AllToAll", elements, op.args["count"], op.args["concat_dim"], nbytes)
        else:
            one = operator_cost("Split", elements, nbytes=nbytes)
        total = [a + b for a, b in zip(total, one)]
        shape = after_operator(op, shape)
    return MapCost(*total)


@dataclass(frozen=True)
class MindSporePlan:
    """The operators of MindSpore's inference; ``str(plan)`` sets them beside the plan of this package."""

    ours: Plan
    all2all: bool = True

    @property
    def before(self) -> MapLayout:
        """The layout before, in numbers."""
        return MapLayout.of(self.ours.src, self.ours.shape)

    @property
    def after(self) -> MapLayout:
        """The layout after, in numbers."""
        return MapLayout.of(self.ours.dst, self.ours.shape_after)

    def operators(self, rank: int | None = None) -> list[MapOperator]:
        """Return the operators that take a rank from its source shard to its target shard, in order.

        A dim that several axes split is reshaped to one dim per axis, and back at the end.

        Args:
            rank: the rank; None for the first rank of the mesh.
        """
        ours, mesh = self.ours, self.ours.src.mesh
        rank = mesh.rank_at(0) if rank is None else rank
        inserted = operators(self.before, self.after, rank, mesh.rank_list, self.all2all)
        local_shape = list(ours.src.local_shape(ours.shape, rank))
        wanted = list(ours.dst.local_shape(ours.shape_after, rank))
        if list(self.before.slice_shape) != local_shape and not (inserted and inserted[0].name == "Reshape"):
            inserted.insert(0, MapOperator("Reshape", list(self.before.slice_shape)))
        if list(self.after.slice_shape) != wanted:
            if inserted and inserted[-1].name == "Reshape":
                inserted.pop()
            inserted.append(MapOperator("Reshape", wanted))
        return [op for k, op in enumerate(inserted) if k or op != MapOperator("Reshape", local_shape)]

    def operator_names(self, rank: int | None = None) -> list[str]:
        """The operators that run, an AllConcat beyond dim 0 as AllGather, Split and Concat."""
        return names(self.operators(rank))

    def nbytes(self, rank: int | None = None) -> int:
        """Bytes the rank receives."""
        return received_elements(self.operators(rank), self.before.slice_shape) * self.ours.itemsize

    def cost(self, rank: int | None = None) -> MapCost:
        """MindSpore's own cost of it, in bytes."""
        return list_cost(self.operators(rank), self.before.slice_shape, self.ours.itemsize)

    def to_dict(self) -> dict[str, Any]:
        """The plan in plain types."""
        cost, ranks = self.cost(), self.ours.src.mesh.rank_list
        return {
            "style": "mindspore",
            "expandable": is_expandable(self.before, self.after),
            "operators": {str(rank): [op.plain() for op in self.operators(rank)] for rank in ranks},
            "operator_names": self.operator_names(),
            "nbytes": self.nbytes(),
            "cost": {**cost._asdict(), "communication": cost.communication},
            "ours": self.ours.to_dict(),
        }

    def __str__(self) -> str:
        inserted = [f"  {op.name} {op.args}" for op in self.operators()] or ["  nothing"]
        common = "  because the layouts have no common form, everything is gathered"
        if is_expandable(self.before, self.after):
            one, other = unify(self.before, self.after)
            common = (
                f"  on the common device matrix {one.matrix}, shape {one.shape}: map {one.map} -> {other.map}"
            )
        cost, nbytes, ours = self.cost(), self.nbytes(), self.ours.max_nbytes
        much = f", {nbytes / ours:.3g} times less" if 0 < ours < nbytes else ""
        lines = [
            f"MindSpore inserts, on rank {self.ours.src.mesh.rank_at(0)}:",
            *inserted,
            common,
            f"  received {bytes_text(nbytes)}; its own model: communication {bytes_text(cost.forward)} forward and "
            f"{bytes_text(cost.backward)} backward, from slices of {many(math.prod(self.before.slice_shape), 'element')}",
            f"this package receives {bytes_text(ours)}{much}:",
            str(self.ours),
        ]
        return "\n".join(lines)


def mindspore_plan(ours: Plan) -> MindSporePlan:
    """The plan of MindSpore's inference for what a plan of this package does."""
    if ours.src.mesh.rank_list != ours.dst.mesh.rank_list:
        raise PlanError(
            f"MindSpore redistributes within one rank list only, not from {ours.src} to {ours.dst}"
        )
    theirs = MindSporePlan(ours)
    for layout in (theirs.before, theirs.after):
        _ = layout.slice_shape  # refused at once
    return theirs
