"""Offline transforms of MindSpore: what a set of checkpoint slices goes through to fit another layout.

Per rank a list of operators; the ranks whose slices a rank needs; the order in which the operators of all those ranks
are applied; and the maps of a reshard on the fly, between stages of a pipeline and between device counts.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

from spmdsim.errors import PlanError
from spmdsim.imitations.mindspore.map_operators import MapOperator, operators
from spmdsim.imitations.mindspore.reorder import optimise
from spmdsim.imitations.mindspore.unify import MapLayout, Shape, Written, as_numbers

OperatorMap = dict[int, list[MapOperator]]


def operator_map(
    before: MapLayout | Written, after: MapLayout | Written, ranks: Sequence[int] | None = None
) -> OperatorMap:
    """The operators of all ranks; layouts for different numbers of devices are brought to one first."""
    before, after = same_devices(before, after)
    ranks = list(range(math.prod(before.matrix))) if ranks is None else list(ranks)
    return {rank: operators(before, after, rank, ranks) for rank in ranks}


def same_devices(before: MapLayout | Written, after: MapLayout | Written) -> tuple[MapLayout, MapLayout]:
    """The layout for fewer devices with a leading axis along which everything repeats.

    Raises:
        PlanError: one number of devices is no multiple of the other.

    >>> same_devices(MapLayout((8, 8), (-1, 0), (64, 64)), MapLayout((16, 8), (1, -1), (64, 64)))[0].matrix
    (2, 8, 8)
    """
    before, after = as_numbers(before), as_numbers(after)
    few, many = sorted((math.prod(before.matrix), math.prod(after.matrix)))
    if many % few:
        raise PlanError(
            f"a layout for {few} devices does not repeat on {many}: {many} is no multiple of {few}"
        )

    def repeated(layout: MapLayout) -> MapLayout:
        if math.prod(layout.matrix) == many:
            return layout
        return MapLayout((many // few, *layout.matrix), layout.map, layout.shape)

    return repeated(before), repeated(after)


def stack(ops: Mapping[int, Sequence[MapOperator]], rank: int) -> list[tuple[int, int, MapOperator]]:
    """Whose operators have to run for ``rank``: ``(rank, level, operator)``, breadth first from its last one.

    An AllConcat needs what all its ranks have before it; they are applied from the end of the list.

    Raises:
        PlanError: a rank that is not there.
    """
    if rank not in ops:
        raise PlanError(f"rank {rank} is none of {list(ops)}")
    if not ops[rank]:
        return []
    waiting = deque([(rank, len(ops[rank]) - 1)])
    stacked = []
    while waiting:
        at, level = waiting.popleft()
        op = ops[at][level]
        if level:
            group = op.args[:-1] if op.name == "AllConcat" else [at]
            waiting += [(peer, level - 1) for peer in group]
        stacked.append((at, level, op))
    return stacked


def needed_ranks(before: MapLayout | Written, after: MapLayout | Written, rank: int) -> list[int]:
    """The ranks whose slices ``rank`` needs to build its own, itself included, ascending.

    >>> needed_ranks(MapLayout((2, 2, 2), (2, 1, 0), (32, 64, 128)), MapLayout((8, 1, 1), (2, 1, 0), (32, 64, 128)), 1)
    [0, 1, 2, 3]
    """
    ops = operator_map(before, after)
    return closure(ops, rank)


def closure(ops: Mapping[int, Sequence[MapOperator]], rank: int) -> list[int]:
    """The ranks that take part in building the result of ``rank``, level by level from the last operator.

    Raises:
        PlanError: a rank that is not there.
    """
    if rank not in ops:
        raise PlanError(f"rank {rank} is none of {list(ops)}")
    needed = {rank}
    for level in range(len(ops[rank]) - 1, -1, -1):
        for peer in list(needed):
            op = ops[peer][level]
            if op.name == "AllConcat":
                needed |= set(op.args[:-1])
    return sorted(needed)


def apply(
    ops: Mapping[int, Sequence[MapOperator]], slices: Mapping[int, np.ndarray]
) -> dict[int, np.ndarray]:
    """Run the operators of all given ranks on their slices."""
    state = {rank: np.asarray(value) for rank, value in slices.items()}
    for level in range(max((len(some) for some in ops.values()), default=0)):
        state = {
            rank: _applied(ops[rank][level], state, rank) if rank in ops else state[rank] for rank in state
        }
    return state


def _applied(op: MapOperator, state: Mapping[int, np.ndarray], rank: int) -> np.ndarray:
    value = state[rank]
    if op.name == "Reshape":
        return value.reshape(op.args)
    if op.name == "AllConcat":
        return np.concatenate([state[peer] for peer in op.args[:-1]], axis=op.args[-1])
    if op.name == "AllToAll":
        group, count = op.args["group"], op.args["count"]
        mine = group.index(rank)
        parts = [np.split(state[peer], count, op.args["split_dim"])[mine] for peer in group]
        return np.concatenate(parts, axis=op.args["concat_dim"])
    begin, end, _ = np.split(np.asarray(op.args), 3)
    return value[tuple(slice(int(a), int(b)) for a, b in zip(begin, end))]


def reshard_map(
    before: Written, after: Written, rank: int, ranks: Sequence[int] | None = None
) -> OperatorMap:
    """The reordered operators of all ranks that take part in a reshard of ``rank``.

    Args:
        before: device matrix, map (several axes on a dim in a list, major first) and shape before.
        after: the same after.
        rank: the rank that wants its slice.
        ranks: the rank list.

    Raises:
        PlanError: numbers that are no layout, or a rank that is not there.
    """
    one, other = same_devices(before, after)
    ranks = list(range(math.prod(one.matrix))) if ranks is None else list(ranks)
    source, target = written_slice(before), written_slice(after)
    first = [MapOperator("Reshape", list(one.slice_shape))] if one.slice_shape != source else []
    last = [MapOperator("Reshape", list(target))] if other.slice_shape != target else []
    if rank not in ranks:
        raise PlanError(f"rank {rank} is not in the rank list {ranks}")
    operators_of = {
        here: [*first, *optimise(operators(one, other, here, ranks), one.slice_shape, ranks), *last]
        for here in ranks
    }
    return {here: operators_of[here] for here in closure(operators_of, rank)} if operators_of[rank] else {}


def written_slice(layout: Written) -> Shape:
    """The local shape of a layout with several axes on a dim."""
    matrix, entries, shape = layout
    parts = []
    for entry in entries:
        axes = [entry] if isinstance(entry, int) else list(entry)
        parts.append(math.prod(matrix[len(matrix) - 1 - axis] for axis in axes if axis >= 0))
    return tuple(size // part for size, part in zip(shape, parts))


def pipeline_map(before_ranks: Sequence[int], after_ranks: Sequence[int], rank: int) -> OperatorMap:
    """How slices reach more ranks with equal layouts: each rank of the first list broadcasts to its likes.

    Args:
        before_ranks: the ranks that hold the slices.
        after_ranks: the ranks that want them; nothing to do if there are not more.
        rank: one of them.

    >>> [op.plain() for op in pipeline_map([0, 1, 2, 3], range(8), 1)[5]]
    [['Broadcast', 1, [1, 5]]]
    """
    few, many = list(before_ranks), list(after_ranks)
    if len(many) <= len(few) or rank not in many:
        return {}
    group = many[many.index(rank) % len(few) :: len(few)]
    root = few[many.index(rank) % len(few)]
    return {peer: [MapOperator("Broadcast", [root, *group])] for peer in group}
