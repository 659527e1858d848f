"""MindSpore's operators of a redistribution on one rank, how its inference picks them, and what it thinks they cost.

The inference is a greedy loop over the dims whose axis is not yet the wanted one: split what can be split, exchange an
axis that another dim holds, gather what nobody wants, and if nothing of this is possible gather the first dim. Volumes
play no part, so the result is correct but not the cheapest.

An AllConcat over a group along a dim is written ``[*group, dim]``; MindSpore runs it as AllGather, which always
concatenates dim 0, and for other dims Split and Concat after it. A StridedSlice is ``[*begin, *end, *strides]``. Costs
(``TensorRedistribution::ComputeCost``) are volumes as its model counts them, not as they are: an AllGather counts half of
what it gathers, an AllToAll twice the slice however many ranks take part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from spmdsim.errors import PlanError
from spmdsim.imitations.mindspore.map_layouts import (
    MapLayout,
    NotExpandable,
    Shape,
    Written,
    as_numbers,
    check_map,
    unify,
)

#: MindSpore keeps the open dims in a hash table. Up to six dims ascending order gives its published results; for seven
#: to twelve this is the order in which its table is walked.
_FEW_DIMS = 6
_WALK = (0, 4, 8, 3, 11, 10, 1, 5, 6, 7, 9, 2)


class Abstract(NamedTuple):
    """One inferred operator, Split, Concat or AllToAll: of a dim, along an axis from the right of so many parts.

    AllToAll splits the dim and concatenates another one.
    """

    name: str
    dim: int
    axis: int
    parts: int
    concat_dim: int = -1

    def arguments(self) -> list[int]:
        """``[dim, axis, count]``; for AllToAll ``[split dim, concat dim, axis, count]``."""
        between = [self.concat_dim] if self.name == "AllToAll" else []
        return [self.dim, *between, self.axis, self.parts]


def infer_operators(
    matrix: Sequence[int], from_map: Sequence[int], to_map: Sequence[int], all2all: bool = False
) -> list[Abstract]:
    """The operators from one map to another on a device matrix.

    Without ``all2all`` axes are exchanged by Concat and Split, as in MindSpore's offline transforms.

    >>> [[op.name, *op.arguments()] for op in infer_operators((4, 2), (1, -1), (-1, 1), all2all=True)]
    [['AllToAll', 1, 0, 1, 4]]
    """
    if len(from_map) != len(to_map):
        raise PlanError(f"two maps of one tensor are equally long, not {list(from_map)} and {list(to_map)}")
    for mapping in (from_map, to_map):
        check_map(MapLayout(tuple(matrix), tuple(mapping), (1,) * len(mapping)))
    return _Inference(tuple(matrix), tuple(from_map), tuple(to_map), all2all).run()


class _Inference:
    def __init__(
        self, matrix: tuple[int, ...], before: tuple[int, ...], after: tuple[int, ...], all2all: bool
    ):
        self.matrix, self.before, self.after, self.all2all = matrix, before, after, all2all
        self.open = {dim: before[dim] for dim in _visited(len(before))}
        self.found: list[Abstract] = []

    def run(self) -> list[Abstract]:
        while self.open:
            count = len(self.found)
            self._split_and_permute()
            self._concat()
            if self.open and len(self.found) == count:
                self._gather(next(iter(self.open)))
        return self.found

    def _split_and_permute(self) -> None:
        while True:
            count = len(self.found)
            self._split()
            while True:
                permuted = len(self.found)
                self._permute()
                if len(self.found) == permuted:
                    break
            if len(self.found) == count:
                return

    def _split(self) -> None:
        for dim, axis in list(self.open.items()):
            wanted = self.after[dim]
            if axis == wanted:
                del self.open[dim]
            elif axis == -1 and wanted not in self.open.values():
                self._add("Split", dim, wanted)
                del self.open[dim]

    def _permute(self) -> None:
        for dim in list(self.open):
            wanted = self.after[dim]
            if self.open[dim] != -1 or wanted == -1 or wanted not in self.open.values():
                continue
            holder = self.before.index(wanted)
            if self.all2all:
                self.found.append(Abstract("AllToAll", dim, wanted, self._size(wanted), holder))
            else:
                self._add("Concat", holder, wanted)
                self._add("Split", dim, wanted)
            del self.open[dim]
            self.open[holder] = -1

    def _concat(self) -> None:
        for dim, axis in list(self.open.items()):
            if axis != -1 and axis not in self.after:
                self._gather(dim)

    def _gather(self, dim: int) -> None:
        self._add("Concat", dim, self.open[dim])
        if self.after[dim] == -1:
            del self.open[dim]
        else:
            self.open[dim] = -1

    def _add(self, name: str, dim: int, axis: int) -> None:
        self.found.append(Abstract(name, dim, axis, self._size(axis)))

    def _size(self, axis: int) -> int:
        return self.matrix[len(self.matrix) - 1 - axis]


def _visited(ndim: int) -> list[int]:
    """The dims in the order in which they are looked at."""
    if not _FEW_DIMS < ndim <= len(_WALK):
        return list(range(ndim))
    return [dim for dim in _WALK if dim < ndim]


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
    before: MapLayout | Written,
    after: MapLayout | Written,
    rank: int,
    ranks: Sequence[int] | None = None,
    all2all: bool = False,
) -> list[MapOperator]:
    """The operators of ``rank``, without the reordering of :mod:`~spmdsim.imitations.mindspore.offline_transform`.

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
    """Inferred operators with the groups and slices of one rank."""
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
    out += reshaped(before.shape, after.shape)
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

    >>> operator_cost("Concat", 100, 4).forward, operator_cost("AllToAll", 100, 4).communication
    (200.0, 400.0)
    >>> operator_cost("Concat", 100).forward  # of one device
    50.0
    """
    whole = elements * count
    copies = elements if dim == 0 else elements + COST_FACTOR * whole
    if name == "Concat":
        # A concat also adds what a split costs, which the original's own comment doubts.
        memory = whole if dim == 0 else copies
        one = MapCost(
            whole * ALL_GATHER_SCALE, elements * ALL_GATHER_SCALE, copies + elements, memory + elements
        )
    elif name in ("AllToAll", "Permute"):
        moved = elements * ALL_TO_ALL_SCALE
        one = MapCost(moved, moved, copies + elements, copies + elements)
    else:
        one = MapCost(0.0, 0.0, elements, elements)
    return MapCost(*(value * nbytes for value in one))


def list_cost(ops: Sequence[MapOperator], local: Sequence[int], nbytes: int = 1) -> MapCost:
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
