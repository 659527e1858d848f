"""Reference of MindSpore's offline transforms, which convert checkpoint slices to another layout.

It derives the operators of each rank, the ranks whose slices a rank needs, and the order of all operators. It also
derives the maps of a reshard on the fly, between pipeline stages and between device counts. Operators of a reshard are
reordered and merged:

- Between reshapes, AllConcats come before slices, and AllConcats of later dims come first.
- A concat or slice behind dims of size 1 moves to dim 0, where it needs no copy.
- Neighbouring operators of one dim are merged.

Lists with one operator, or with other operators, stay unchanged.
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
    """Return the operators ``ops`` in MindSpore's order, merged, for slices of the shape ``local``.

    Positions of ranks in the list ``ranks`` decide which operators merge, not the numbers of the ranks.
    """
    if len(ops) <= 1 or any(op.name not in ("AllConcat", "StridedSlice", "Reshape") for op in ops):
        return list(ops)
    out = _drop_reshapes(_to_slices(ops, local), local)
    out = _sort_operators(out)
    out = _concat_in_front(out, local)
    out = _slice_in_front(out, local)
    out = _drop_reshapes(out, local)
    out = _merge_slices(_merge_concats(out, ranks), local)
    return _to_strided(out, local)


def _shapes(ops: Ops, local: Sizes) -> list[list[int]]:
    """Return the local shape before each operator and after the last operator."""
    shapes = [list(local)]
    for op in ops:
        shapes.append(after_operator(op, shapes[-1]))
    return shapes


def _to_slices(ops: Sequence[MapOperator], local: Sizes) -> Ops:
    """Return ``ops`` on the shape ``local`` with each StridedSlice as ``Slice [dim, parts, index]``."""
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
    """Return ``ops`` without reshapes before another reshape and without reshapes to the current shape.

    ``local`` is the shape before the first operator.
    """
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


def _sort_operators(ops: Ops) -> Ops:
    """Return ``ops`` with AllConcats from the last dim on before slices from the first dim on.

    Sorts only between reshapes.
    """

    def sort_key(op: MapOperator) -> tuple[int, int]:
        """Return ``(0, -dim)`` for an AllConcat and ``(1, dim)`` for a slice."""
        return (0, -op.args[-1]) if op.name == "AllConcat" else (1, op.args[0])

    out: Ops = []
    run: Ops = []
    for op in [*ops, MapOperator("Reshape", [])]:
        if op.name == "Reshape":
            out += [*sorted(run, key=sort_key), op]
            run = []
        else:
            run.append(op)
    return out[:-1]


def _concat_in_front(ops: Ops, local: Sizes) -> Ops:
    """Return ``ops`` with each AllConcat behind dims of size 1 as an AllConcat of dim 0.

    It runs on the shape after the last operator that is no reshape. ``local`` is the shape before the first operator.
    """
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
    """Return ``ops`` with slices behind dims of size 1 moved behind the next reshape.

    The moved slices cut dim 0. Only slices directly before a reshape move. ``local`` is the shape before the first
    operator.
    """
    out = list(ops)
    for number in range(len(out) - 2, -1, -1):
        op, following = out[number], out[number + 1]
        if op.name != "Slice" or following.name != "Reshape":
            continue
        dim, parts, index = op.args
        if all(size == 1 for size in _shapes(out, local)[number][:dim]):
            first, *others = following.args
            out[number] = MapOperator("Reshape", [first * parts, *others])
            out[number + 1] = MapOperator("Slice", [0, parts, index])
    return out


def merged_concat(first: Sizes, second: Sizes) -> list[int] | None:
    """Return the arguments of one AllConcat that replaces two, or None if their ranks do not continue."""
    (*a, dim), (*b, other) = first, second
    if dim != other or (a[1] - a[0]) * len(a) != b[1] - b[0]:
        return None
    shared = [rank for rank in a if rank in b]
    if len(shared) != 1:
        return None
    start = b[0] - (shared[0] - a[0])
    return [*range(start, start + (b[1] - b[0]) * len(b), a[1] - a[0]), dim]


def _merge_concats(ops: Ops, ranks: Sizes | None) -> Ops:
    """Return ``ops`` with neighbouring AllConcats merged if the positions in ``ranks`` allow it."""
    out: Ops = []
    positions = {rank: position for position, rank in enumerate(ranks or ())}
    for op in ops:
        if op.name == "AllConcat" and out and out[-1].name == "AllConcat":
            first, second = ([*(positions.get(r, r) for r in x[:-1]), x[-1]] for x in (out[-1].args, op.args))
            both = merged_concat(first, second)
            if both is not None:
                group = [ranks[k] for k in both[:-1]] if ranks else both[:-1]
                out[-1] = MapOperator("AllConcat", [*group, both[-1]])
                continue
        out.append(op)
    return out


def _merge_slices(ops: Ops, local: Sizes) -> Ops:
    """Return ``ops`` with neighbouring slices of one dim merged.

    Slices of dim 0 merge across a reshape, too, because both cut the row-major order. ``local`` is the shape before the
    first operator.
    """
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
    """Return the operators of all ranks, after `same_devices` made the device counts equal."""
    before, after = same_devices(before, after)
    ranks = list(range(math.prod(before.matrix))) if ranks is None else list(ranks)
    return {rank: operators(before, after, rank, ranks) for rank in ranks}


def same_devices(before: AnyLayout, after: AnyLayout) -> tuple[MapLayout, MapLayout]:
    """Return the layouts ``before`` and ``after`` for the larger of their device counts.

    The layout for fewer devices gets a leading axis of replicas.

    Raises:
        PlanError: If the larger device count is no multiple of the smaller one.
    """
    before, after = as_numbers(before), as_numbers(after)
    fewer, more = sorted((math.prod(before.matrix), math.prod(after.matrix)))
    if more % fewer:
        raise PlanError(
            f"a layout for {fewer} devices does not repeat on {more}: {more} is no multiple of {fewer}"
        )

    def repeated(layout: MapLayout) -> MapLayout:
        times = more // math.prod(layout.matrix)
        return layout if times == 1 else layout._replace(matrix=(times, *layout.matrix))

    return repeated(before), repeated(after)


def stack(ops: Mapping[int, Sequence[MapOperator]], rank: int) -> list[tuple[int, int, MapOperator]]:
    """Return the operators that run for the result of ``rank``, as ``(rank, level, operator)``.

    The order is breadth first from the last operator, because an AllConcat needs the earlier slices of all its ranks.
    The operators are applied from the end of the list.

    Args:
        ops: the operators of each rank.
        rank: the rank that gets the result.

    Raises:
        PlanError: If ``rank`` is not a key of ``ops``.
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
    """Return the ranks whose slices ``rank`` needs for its new slice, itself included, ascending."""
    return closure(operator_map(before, after), rank)


def closure(ops: Mapping[int, Sequence[MapOperator]], rank: int) -> list[int]:
    """Return the ranks that take part in the result of ``rank``, ascending.

    Collects the ranks level by level from the last operator of ``ops[rank]`` on.

    Raises:
        PlanError: If ``rank`` is not a key of ``ops``.
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


def reshard_map(before: Written, after: Written, rank: int, ranks: Sizes | None = None) -> OperatorMap:
    """Return the reordered operators of all ranks that take part in a reshard of ``rank``.

    Args:
        before: the layout of the slices.
        after: the wanted layout.
        rank: the rank that gets the result.
        ranks: the rank list; None is 0, 1, and so on.

    Raises:
        PlanError: If ``rank`` is not in the rank list.
    """
    one, other = same_devices(before, after)
    ranks = list(range(math.prod(one.matrix))) if ranks is None else list(ranks)
    source, target = written_slice(before), written_slice(after)
    first, last = reshape_operators(source, one.slice_shape), reshape_operators(other.slice_shape, target)
    if rank not in ranks:
        raise PlanError(f"rank {rank} is not in the rank list {ranks}")
    operators_of = {
        peer: [*first, *optimise(operators(one, other, peer, ranks), one.slice_shape, ranks), *last]
        for peer in ranks
    }
    return {peer: operators_of[peer] for peer in closure(operators_of, rank)} if operators_of[rank] else {}


def written_slice(layout: Written) -> Shape:
    """Return the local shape of a layout whose dims may have several axes."""
    matrix, entries, shape = layout
    cuts = []
    for entry in entries:
        axes = [entry] if isinstance(entry, int) else list(entry)
        cuts.append(math.prod(matrix[len(matrix) - 1 - axis] for axis in axes if axis >= 0))
    return tuple(size // cut for size, cut in zip(shape, cuts))


def pipeline_map(before_ranks: Sizes, after_ranks: Sizes, rank: int) -> OperatorMap:
    """Return the broadcasts that copy slices to more ranks with an equal layout.

    Each rank of ``before_ranks`` broadcasts to the ranks of ``after_ranks`` with its slice. The map has the group of
    ``rank``, and is empty if ``rank`` needs no broadcast.
    """
    sources, targets = list(before_ranks), list(after_ranks)
    if len(targets) <= len(sources) or rank not in targets:
        return {}
    group = targets[targets.index(rank) % len(sources) :: len(sources)]
    root = sources[targets.index(rank) % len(sources)]
    return {peer: [MapOperator("Broadcast", [root, *group])] for peer in group}
