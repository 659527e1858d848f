"""The reference of MindSpore's offline transforms: what a set of checkpoint slices goes through to fit another layout.

Per rank a list of operators; the ranks whose slices a rank needs; the order in which the operators of all those ranks
are applied; and the maps of a reshard on the fly, between stages of a pipeline and between device counts. Those are
reordered and merged: between reshapes, AllConcats come before slices, the last dims first; a concat or a slice behind
dims of size 1 becomes one of dim 0, where no copy is needed; neighbours of one dim are merged. Lists with other
operators, or with a single one, stay as they are.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence

from spmdsim.dialects.imitations.mindspore.map_layouts import (
    AnyLayout,
    MapLayout,
    Shape,
    Sizes,
    Written,
    as_numbers,
)
from spmdsim.dialects.imitations.mindspore.map_operators import (
    MapOperator,
    after_operator,
    operators,
    reshape_operators,
    slice_operator,
)
from spmdsim.errors import PlanError

Ops = list[MapOperator]


def optimise(ops: Sequence[MapOperator], local: Sizes, ranks: Sizes | None = None) -> Ops:
    """The operators as MindSpore would run them, from a local shape on.

    What may be merged follows from where ranks stand in the rank list, not from their numbers.
    """
    if len(ops) <= 1 or any(op.name not in ("AllConcat", "StridedSlice", "Reshape") for op in ops):
        return list(ops)
    out = _drop_reshapes(_to_slices(ops, local), local)
    out = _sorted(out)
    out = _concat_in_front(out, local)
    out = _slice_in_front(out, local)
    out = _drop_reshapes(out, local)
    out = _merge_slices(_merge_concats(out, ranks), local)
    return _to_strided(out, local)


def _shapes(ops: Ops, local: Sizes) -> list[list[int]]:
    """The local shape before every operator, and after the last one."""
    shapes = [list(local)]
    for op in ops:
        shapes.append(after_operator(op, shapes[-1]))
    return shapes


def _to_slices(ops: Sequence[MapOperator], local: Sizes) -> Ops:
    """StridedSlices as ``Slice [dim, parts, index]``."""
    out, shapes = [], _shapes(list(ops), local)
    for op, before, after in zip(ops, shapes, shapes[1:]):
        if op.name == "StridedSlice":
            dim = next((d for d, (a, b) in enumerate(zip(before, after)) if a != b), 0)
            op = MapOperator("Slice", [dim, before[dim] // after[dim], op.args[dim] // after[dim]])
        out.append(op)
    return out


def _to_strided(ops: Ops, local: Sizes) -> Ops:
    out = []
    for op, after in zip(ops, _shapes(ops, local)[1:]):
        if op.name == "Slice":
            op = slice_operator(after, op.args[0], op.args[2])
        out.append(op)
    return out


def _drop_reshapes(ops: Ops, local: Sizes) -> Ops:
    """Only the last of several reshapes, and none to the shape that is there."""
    out: Ops = []
    shape = list(local)
    for number, op in enumerate(ops):
        if op.name == "Reshape":
            followed = number + 1 < len(ops) and ops[number + 1].name == "Reshape"
            if followed or list(op.args) == shape:
                continue
        out.append(op)
        shape = after_operator(op, shape)
    return out


def _sorted(ops: Ops) -> Ops:
    """AllConcats of later dims first, then slices of earlier dims, between any two reshapes."""

    def place(op: MapOperator) -> tuple[int, int]:
        return (0, -op.args[-1]) if op.name == "AllConcat" else (1, op.args[0])

    out: Ops = []
    run: Ops = []
    for op in [*ops, MapOperator("Reshape", [])]:
        if op.name == "Reshape":
            out += [*sorted(run, key=place), op]
            run = []
        else:
            run.append(op)
    return out[:-1]


def _concat_in_front(ops: Ops, local: Sizes) -> Ops:
    """A concat behind dims of size 1 becomes one of dim 0, on the shape the values were last computed in."""
    out = list(ops)
    number = 0
    while number < len(out):
        op = out[number]
        shapes = _shapes(out, local)
        dim = op.args[-1] if op.name == "AllConcat" else 0
        if dim and all(size == 1 for size in shapes[number][:dim]):
            earlier = [k for k in range(number) if out[k].name != "Reshape"]
            plain = shapes[earlier[-1] + 1] if earlier else shapes[number][dim:]
            out[number : number + 1] = [
                MapOperator("Reshape", plain),
                MapOperator("AllConcat", [*op.args[:-1], 0]),
                MapOperator("Reshape", shapes[number + 1]),
            ]
            number += 2
        number += 1
    return out


def _slice_in_front(ops: Ops, local: Sizes) -> Ops:
    """A slice behind dims of size 1 that is reshaped next becomes one of dim 0 after the reshape."""
    out = list(ops)
    for number in range(len(out) - 2, -1, -1):
        op, following = out[number], out[number + 1]
        if op.name != "Slice" or following.name != "Reshape":
            continue
        dim, parts, index = op.args
        if all(size == 1 for size in _shapes(out, local)[number][:dim]):
            first, *rest = following.args
            out[number] = MapOperator("Reshape", [first * parts, *rest])
            out[number + 1] = MapOperator("Slice", [0, parts, index])
    return out


def merged_concat(first: Sizes, second: Sizes) -> list[int] | None:
    """Two AllConcats of one dim as one, if the second continues the steps of the first."""
    (*a, dim), (*b, other) = first, second
    if dim != other or (a[1] - a[0]) * len(a) != b[1] - b[0]:
        return None
    shared = [rank for rank in a if rank in b]
    if len(shared) != 1:
        return None
    start = b[0] - (shared[0] - a[0])
    return [*range(start, start + (b[1] - b[0]) * len(b), a[1] - a[0]), dim]


def _merge_concats(ops: Ops, ranks: Sizes | None) -> Ops:
    out: Ops = []
    place = {rank: position for position, rank in enumerate(ranks or ())}
    for op in ops:
        if op.name == "AllConcat" and out and out[-1].name == "AllConcat":
            first, second = ([*(place.get(r, r) for r in x[:-1]), x[-1]] for x in (out[-1].args, op.args))
            both = merged_concat(first, second)
            if both is not None:
                group = [ranks[k] for k in both[:-1]] if ranks else both[:-1]
                out[-1] = MapOperator("AllConcat", [*group, both[-1]])
                continue
        out.append(op)
    return out


def _merge_slices(ops: Ops, local: Sizes) -> Ops:
    """Slices of one dim as one; of dim 0 also across a reshape, because both cut the row-major order."""
    out: Ops = []
    for op in ops:
        across = len(out) > 1 and out[-1].name == "Reshape" and out[-2].name == "Slice"
        earlier = out[-2] if across else out[-1] if out else None
        if op.name != "Slice" or earlier is None or earlier.name != "Slice" or earlier.args[0] != op.args[0]:
            out.append(op)
            continue
        (dim, parts, index), (_, more, which) = earlier.args, op.args
        both = MapOperator("Slice", [dim, parts * more, index * more + which])
        before = _shapes(out, local)[-3 if across else -2]
        if not across:
            out[-1] = both
        elif dim == 0 and before[0] % (parts * more) == 0:
            shape = after_operator(op, out[-1].args)
            out[-2:] = [both, MapOperator("Reshape", shape)]
        else:
            out.append(op)
    return _drop_reshapes(out, local)


OperatorMap = dict[int, list[MapOperator]]


def operator_map(before: AnyLayout, after: AnyLayout, ranks: Sizes | None = None) -> OperatorMap:
    """The operators of all ranks; layouts for different numbers of devices are brought to one first."""
    before, after = same_devices(before, after)
    ranks = list(range(math.prod(before.matrix))) if ranks is None else list(ranks)
    return {rank: operators(before, after, rank, ranks) for rank in ranks}


def same_devices(before: AnyLayout, after: AnyLayout) -> tuple[MapLayout, MapLayout]:
    """The layout for fewer devices with a leading axis along which everything repeats."""
    before, after = as_numbers(before), as_numbers(after)
    few, many = sorted((math.prod(before.matrix), math.prod(after.matrix)))
    if many % few:
        raise PlanError(
            f"a layout for {few} devices does not repeat on {many}: {many} is no multiple of {few}"
        )

    def repeated(layout: MapLayout) -> MapLayout:
        times = many // math.prod(layout.matrix)
        return layout if times == 1 else layout._replace(matrix=(times, *layout.matrix))

    return repeated(before), repeated(after)


def stack(ops: Mapping[int, Sequence[MapOperator]], rank: int) -> list[tuple[int, int, MapOperator]]:
    """Whose operators have to run for ``rank``: ``(rank, level, operator)``, breadth first from its last one.

    An AllConcat needs what all its ranks have before it; they are applied from the end of the list.
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


def needed_ranks(before: AnyLayout, after: AnyLayout, rank: int) -> list[int]:
    """The ranks whose slices ``rank`` needs to build its own, itself included, ascending."""
    return closure(operator_map(before, after), rank)


def closure(ops: Mapping[int, Sequence[MapOperator]], rank: int) -> list[int]:
    """The ranks that take part in building the result of ``rank``, level by level from the last operator."""
    if rank not in ops:
        raise PlanError(f"rank {rank} is none of {list(ops)}")
    needed = {rank}
    for level in range(len(ops[rank]) - 1, -1, -1):
        for peer in list(needed):
            op = ops[peer][level]
            if op.name == "AllConcat":
                needed |= set(op.args[:-1])
    return sorted(needed)


def reshard_map(before: Written, after: Written, rank: int, ranks: Sizes | None = None) -> OperatorMap:
    """The reordered operators of all ranks that take part in a reshard of ``rank``."""
    one, other = same_devices(before, after)
    ranks = list(range(math.prod(one.matrix))) if ranks is None else list(ranks)
    source, target = written_slice(before), written_slice(after)
    first, last = reshape_operators(source, one.slice_shape), reshape_operators(other.slice_shape, target)
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


def pipeline_map(before_ranks: Sizes, after_ranks: Sizes, rank: int) -> OperatorMap:
    """How slices reach more ranks with equal layouts: each rank of the first list broadcasts to its likes."""
    few, many = list(before_ranks), list(after_ranks)
    if len(many) <= len(few) or rank not in many:
        return {}
    group = many[many.index(rank) % len(few) :: len(few)]
    root = few[many.index(rank) % len(few)]
    return {peer: [MapOperator("Broadcast", [root, *group])] for peer in group}
