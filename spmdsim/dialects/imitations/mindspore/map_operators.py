"""MindSpore's redistribution operators on one rank, MindSpore's costs of them, and a comparison with our plan.

An AllConcat over a group along a dim has the arguments ``[*group, dim]``. MindSpore runs it as AllGather, which
always concatenates dim 0; for other dims, Split and Concat follow. A StridedSlice has ``[*begin, *end, *strides]``.
Costs (``TensorRedistribution::ComputeCost``) are the volumes that MindSpore's model counts, which differ from the
real ones: an AllGather counts half of what it gathers, an AllToAll twice the shard, for any number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from spmdsim.dialects.imitations.mindspore.map_layouts import (
    Abstract,
    MapLayout,
    NotExpandable,
    Shape,
    Sizes,
    infer_operators,
    unify,
)
from spmdsim.errors import PlanError, many
from spmdsim.redistribution.plans.plan_table import bytes_text
from spmdsim.redistribution.plans.planner import Plan


class MapOperator(NamedTuple):
    """Concrete Reshape, AllConcat, AllToAll, StridedSlice or Broadcast, with MindSpore's arguments.

    AllToAll has a dict with ``group``, ``split_dim``, ``concat_dim`` and ``count``; Broadcast has the root, then the
    group.
    """

    name: str
    args: Any

    def to_list(self) -> list[Any]:
        """Return ``[name, args]``."""
        return [self.name, self.args]


def operators(
    before: MapLayout, after: MapLayout, rank: int, ranks: Sizes | None = None, all2all: bool = False
) -> list[MapOperator]:
    """Return the operators that change a rank's shard from one layout to another, in order.

    They are those of MindSpore's redistribution in a program, without the reordering of its offline transforms. If the
    layouts have no common form, all dims are gathered, and the result is sliced. The list is empty for equal layouts.

    Args:
        before: layout before.
        after: layout after.
        rank: the rank.
        ranks: ranks of the device matrix, row-major; None for 0, 1, and so on.
        all2all: exchange axes by AllToAll, not by Concat and Split.

    Raises:
        PlanError: If the layouts are for different numbers of devices, uneven, or ``rank`` is not one of
            the ranks.

    >>> ops = operators(MapLayout((8,), (0, -1), (32, 256)), MapLayout((4, 2), (1, -1), (32, 256)), 0)
    >>> [op.to_list() for op in ops]
    [['Reshape', [1, 4, 256]], ['AllConcat', [0, 1, 1]], ['Reshape', [8, 256]]]
    """
    ranks = _check_ranks(before, after, rank, ranks)
    try:
        source, target = unify(before, after)
    except NotExpandable:
        return _gather_all(before, after, rank, ranks)
    inferred = infer_operators(source.matrix, source.map, target.map, all2all)
    middle = make_concrete(inferred, source.matrix, source.slice_shape, rank, ranks)
    first = reshape_operators(before.slice_shape, source.slice_shape)
    return [*first, *middle, *reshape_operators(target.slice_shape, after.slice_shape)]


def reshape_operators(before: Shape, after: Shape) -> list[MapOperator]:
    """Return a list with a Reshape to ``after``, or an empty list if the local shapes are equal."""
    return [] if before == after else [MapOperator("Reshape", list(after))]


def slice_operator(shape: Sizes, dim: int, index: int) -> MapOperator:
    """Return the StridedSlice that takes block ``index`` of a dim; ``shape`` is the local shape after it."""
    begin, end = [0] * len(shape), list(shape)
    begin[dim], end[dim] = index * shape[dim], (index + 1) * shape[dim]
    return MapOperator("StridedSlice", [*begin, *end, *[1] * len(shape)])


def _check_ranks(before: MapLayout, after: MapLayout, rank: int, ranks: Sizes | None) -> list[int]:
    """Return the rank list after checks; None is 0, 1, and so on.

    Args:
        before: layout before.
        after: layout after.
        rank: a rank that must be in the list.
        ranks: the rank list, or None.

    Raises:
        PlanError: If the device matrices differ in size, the list has a wrong length or repeats a rank, or ``rank`` is
            missing.
    """
    devices, others = math.prod(before.matrix), math.prod(after.matrix)
    if devices != others:
        raise PlanError(
            f"both device matrices must have equally many devices, got {list(before.matrix)} and "
            f"{list(after.matrix)}, with {devices} and {many(others, 'device')}"
        )
    rank_list = list(range(devices)) if ranks is None else list(ranks)
    if len(rank_list) != devices or len(set(rank_list)) < devices:
        raise PlanError(
            f"the rank list for device matrix {list(before.matrix)} must have {many(devices, 'rank')}, each once, "
            f"got {rank_list}"
        )
    if rank not in rank_list:
        raise PlanError(f"rank must be in the rank list {rank_list}, got {rank}")
    return rank_list


def is_expandable(before: MapLayout, after: MapLayout) -> bool:
    """Return True if MindSpore can bring two layouts to one shape and one device matrix.

    If it cannot, its redistribution gathers the whole tensor first.

    Args:
        before: the layout at the start.
        after: the layout at the end.
    """
    try:
        unify(before, after)
    except NotExpandable:
        return False
    return True


def make_concrete(
    abstract: Sequence[Abstract], matrix: Shape, local: Shape, rank: int, ranks: Sizes
) -> list[MapOperator]:
    """Return inferred operators with the groups and slices of one rank, in order.

    A Split becomes a StridedSlice, a Concat an AllConcat; an AllToAll stays.

    Args:
        abstract: the inferred operators.
        matrix: device matrix.
        local: local shape before the first operator.
        rank: the rank.
        ranks: ranks of the device matrix, in row-major order.
    """
    shape, out = list(local), []
    for op in abstract:
        group, index = _group(matrix, op.axis, rank, ranks)
        if op.name == "Split":
            shape[op.dim] //= op.parts
            out.append(slice_operator(shape, op.dim, index))
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
    """Return the operators that gather all dims, reshape and slice.

    They serve layouts without a common form.
    """
    nothing = (-1,) * len(before.map)
    gathers = infer_operators(before.matrix, _without_ones(before), nothing)
    out = make_concrete(gathers, before.matrix, before.slice_shape, rank, ranks)
    out += reshape_operators(before.shape, after.shape)
    slices = infer_operators(after.matrix, (-1,) * len(after.map), _without_ones(after))
    return out + make_concrete(slices, after.matrix, after.shape, rank, ranks)


def _without_ones(layout: MapLayout) -> Shape:
    """Return the map with -1 for axes of size 1."""
    return tuple(axis if layout.axis_size(axis) > 1 else -1 for axis in layout.map)


def _group(matrix: Shape, axis: int, rank: int, ranks: Sizes) -> tuple[list[int], int]:
    """Return the group of a rank along one axis, and the rank's position in it.

    The group's ranks are in the order of the axis.

    Args:
        matrix: device matrix.
        axis: the axis, counted from the right.
        rank: the rank, which must be in ``ranks``.
        ranks: ranks of the device matrix, in row-major order.

    >>> _group((2, 4), 1, 5, list(range(8)))
    ([1, 5], 1)
    """
    from_left = len(matrix) - 1 - axis
    stride, size = math.prod(matrix[from_left + 1 :]), matrix[from_left]
    position = ranks.index(rank)
    index = position // stride % size
    base = position - index * stride
    return [ranks[base + k * stride] for k in range(size)], index


def run_names(ops: Sequence[MapOperator]) -> list[str]:
    """Return the names of the operators that MindSpore runs for a list of operators, in order.

    An AllConcat runs as AllGather; along another dim than 0, Split and Concat follow. Others run under their names.

    Args:
        ops: concrete operators.
    """
    out: list[str] = []
    for op in ops:
        if op.name == "AllConcat":
            dim = op.args[-1]
            out += ["AllGather"] if dim == 0 else ["AllGather", "Split", "Concat"]
        else:
            out.append(op.name)
    return out


def after_operator(op: MapOperator, shape: Sizes) -> list[int]:
    """Return the local shape after an operator.

    Besides the names of `MapOperator` it knows ``Slice`` with ``[dim, count]``; all other operators keep the
    shape. For example, an AllConcat of two ranks along dim 0 makes (8, 4) of (4, 4).

    Args:
        op: the operator.
        shape: local shape before it.
    """
    out = list(shape)
    if op.name == "Reshape":
        return list(op.args)
    if op.name == "AllConcat":
        out[op.args[-1]] *= len(op.args) - 1
    elif op.name == "AllToAll":
        out[op.args["split_dim"]] //= op.args["count"]
        out[op.args["concat_dim"]] *= op.args["count"]
    elif op.name == "StridedSlice":  # its arguments are begin, end and strides of 1, each per dim
        out = [end - begin for begin, end in zip(op.args, op.args[len(out) :][: len(out)])]
    elif op.name == "Slice":
        out[op.args[0]] //= op.args[1]
    return out


def count_operator_traffic(ops: Sequence[MapOperator], local: Sizes) -> int:
    """Return the number of elements that a rank receives in a list of operators.

    An AllConcat receives all other shards of the group, an AllToAll (count - 1) / count of the shard, rounded down;
    others receive nothing.

    Args:
        ops: concrete operators, in order.
        local: local shape before the first one.
    """
    shape, total = list(local), 0
    for op in ops:
        if op.name == "AllConcat":
            *group, _dim = op.args
            total += (len(group) - 1) * math.prod(shape)
        elif op.name == "AllToAll":
            total += math.prod(shape) * (op.args["count"] - 1) // op.args["count"]
        shape = after_operator(op, shape)
    return total


ALL_TO_ALL_SCALE = 2.0
ALL_GATHER_SCALE = 0.5
COST_FACTOR = 2.0


class MapCost(NamedTuple):
    """Cost in elements times bytes per element.

    Attributes:
        forward: forward communication.
        backward: backward communication.
        computation: elements touched.
        memory: elements of buffers.
    """

    forward: float
    backward: float
    computation: float
    memory: float

    @property
    def communication(self) -> float:
        """Forward plus backward communication."""
        return self.forward + self.backward


def operator_cost(name: str, elements: int, count: int = 1, dim: int = 0, nbytes: int = 1) -> MapCost:
    """Return MindSpore's cost of a Split, Concat or AllToAll (also called Permute).

    The shard has e elements, and the shards of all ranks have g = e * count. If ``dim`` is 0, c = e elements
    are copied, else c = e + 2 * g. The costs in elements are:

    * Split: no communication; computation e; memory e.
    * Concat: communication g / 2 forward and e / 2 backward; computation c + e; memory g + e if ``dim`` is 0,
      else c + e.
    * AllToAll: communication 2 * e forward and 2 * e backward; computation c + e; memory c + e.

    For example, a Concat of 100 elements on 4 ranks along dim 0 has communication 200 and 50, computation 200
    and memory 500.

    Args:
        name: name of the operator; other names cost as a Split.
        elements: elements of the shard before the operator.
        count: number of ranks.
        dim: dim that is concatenated; beyond 0, the values are copied once more.
        nbytes: bytes of an element, by which all numbers are multiplied.
    """
    gathered = elements * count
    copies = elements if dim == 0 else elements + COST_FACTOR * gathered
    if name == "Concat":
        # A concat also adds the cost of a split, as in the original, whose own comment doubts it.
        memory = (gathered if dim == 0 else copies) + elements
        forward, backward = gathered * ALL_GATHER_SCALE, elements * ALL_GATHER_SCALE
        cost = MapCost(forward, backward, copies + elements, memory)
    elif name in ("AllToAll", "Permute"):
        moved = elements * ALL_TO_ALL_SCALE
        cost = MapCost(moved, moved, copies + elements, copies + elements)
    else:
        cost = MapCost(0.0, 0.0, elements, elements)
    return MapCost(*(value * nbytes for value in cost))


def list_cost(ops: Sequence[MapOperator], local: Sizes, nbytes: int = 1) -> MapCost:
    """Return MindSpore's cost of a list of operators: the sum of their costs.

    A Reshape costs twice its elements of computation and memory; for the others see `operator_cost`.

    Args:
        ops: concrete operators, in order.
        local: local shape before the first one.
        nbytes: bytes of an element.
    """
    total = [0.0, 0.0, 0.0, 0.0]
    shape = list(local)
    for op in ops:
        elements = math.prod(shape)
        if op.name == "Reshape":
            cost = MapCost(0.0, 0.0, COST_FACTOR * elements * nbytes, COST_FACTOR * elements * nbytes)
        elif op.name == "AllConcat":
            cost = operator_cost("Concat", elements, len(op.args) - 1, op.args[-1], nbytes)
        elif op.name == "AllToAll":
            cost = operator_cost("AllToAll", elements, op.args["count"], op.args["concat_dim"], nbytes)
        else:
            cost = operator_cost("Split", elements, nbytes=nbytes)
        total = [a + b for a, b in zip(total, cost)]
        shape = after_operator(op, shape)
    return MapCost(*total)


@dataclass(frozen=True)
class MindSporePlan:
    """Operators of MindSpore's inference; ``str(plan)`` compares them with the plan of this package.

    Attributes:
        ours: the plan of this package for the redistribution.
        all2all: exchange axes by AllToAll.
    """

    ours: Plan
    all2all: bool = True

    @property
    def before(self) -> MapLayout:
        """Layout before, in numbers."""
        return MapLayout.of(self.ours.src, self.ours.shape)

    @property
    def after(self) -> MapLayout:
        """Layout after, in numbers."""
        return MapLayout.of(self.ours.dst, self.ours.shape_after)

    def operators(self, rank: int | None = None) -> list[MapOperator]:
        """Return the operators that take a rank from its source shard to its target shard, in order.

        A dim that several axes split is reshaped to one dim per axis, and back at the end. A Reshape to the shape that
        the shard has already is left out at the front.

        Args:
            rank: the rank; None for the first rank of the mesh.

        Raises:
            PlanError: If the rank is not in the mesh.
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
        """Return the names of the operators that run; AllConcat beyond dim 0 is AllGather, Split, Concat."""
        return run_names(self.operators(rank))

    def nbytes(self, rank: int | None = None) -> int:
        """Return the bytes that the rank receives."""
        return count_operator_traffic(self.operators(rank), self.before.slice_shape) * self.ours.itemsize

    def cost(self, rank: int | None = None) -> MapCost:
        """Return MindSpore's own cost of the plan, in bytes."""
        return list_cost(self.operators(rank), self.before.slice_shape, self.ours.itemsize)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as a dict of numbers, texts and lists, for JSON.

        Its keys are ``style`` ("mindspore"), ``expandable`` (see `is_expandable`), ``operators`` (lists by rank, as
        text), ``operator_names``, ``nbytes`` and ``cost`` of the first rank, and ``ours``, the dict of this package's
        plan.
        """
        cost, ranks = self.cost(), self.ours.src.mesh.rank_list
        return {
            "style": "mindspore",
            "expandable": is_expandable(self.before, self.after),
            "operators": {str(rank): [op.to_list() for op in self.operators(rank)] for rank in ranks},
            "operator_names": self.operator_names(),
            "nbytes": self.nbytes(),
            "cost": {**cost._asdict(), "communication": cost.communication},
            "ours": self.ours.to_dict(),
        }

    def __str__(self) -> str:
        inserted = [f"  {op.name} {op.args}" for op in self.operators()] or ["  nothing"]
        common = "  because the layouts have no common form, everything is gathered"
        if is_expandable(self.before, self.after):
            source, target = unify(self.before, self.after)
            common = f"  on the common device matrix {source.matrix}, shape {source.shape}: map {source.map} -> {target.map}"
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
    """Return the plan that MindSpore makes for the redistribution of a plan of this package.

    It exchanges axes by AllToAll. Its operators are inferred when they are read; see :class:`MindSporePlan`.

    Args:
        ours: this package's plan, which states layouts, shape and element size.

    Raises:
        PlanError: If the rank lists differ, a layout has pending reductions, or a split is uneven.
    """
    if ours.src.mesh.rank_list != ours.dst.mesh.rank_list:
        raise PlanError(
            f"MindSpore redistributes within one rank list only, got {ours.src} and {ours.dst}; give both layouts "
            "equal ranks"
        )
    theirs = MindSporePlan(ours)
    for layout in (theirs.before, theirs.after):
        _ = layout.slice_shape  # Read it now, because it raises PlanError for uneven splits.
    return theirs
