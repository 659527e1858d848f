"""The reordering and merging that MindSpore applies to the operators of a reshard.

Between reshapes, AllConcats come before slices, the last dims first; a concat or a slice behind dims of size 1
becomes one of dim 0, where no copy is needed; neighbours of one dim are merged. Lists with other operators, or with
a single one, stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cmp_to_key

from spmdsim.imitations.mindspore.map_operators import MapOperator, after_operator

Ops = list[MapOperator]


def optimise(ops: Sequence[MapOperator], local: Sequence[int], ranks: Sequence[int] | None = None) -> Ops:
    """The operators as MindSpore would run them.

    Args:
        ops: the operators, AllConcat already in one piece.
        local: the local shape they start from.
        ranks: the rank list that the operators were made with, if it is not in steps of one: what may be merged
            follows from where ranks stand in it, not from their numbers.

    >>> ops = [MapOperator("AllConcat", [0, 2, 0]), MapOperator("AllConcat", [0, 4, 0])]
    >>> [op.plain() for op in optimise(ops, (2, 4))]
    [['AllConcat', [0, 2, 4, 6, 0]]]
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


def _shapes(ops: Ops, local: Sequence[int]) -> list[list[int]]:
    """The local shape before every operator, and after the last one."""
    shapes = [list(local)]
    for op in ops:
        shapes.append(after_operator(op, shapes[-1]))
    return shapes


def _to_slices(ops: Sequence[MapOperator], local: Sequence[int]) -> Ops:
    """StridedSlices as ``Slice [dim, parts, index]``."""
    out, shapes = [], _shapes(list(ops), local)
    for op, before, after in zip(ops, shapes, shapes[1:]):
        if op.name == "StridedSlice":
            dim = next((d for d, (a, b) in enumerate(zip(before, after)) if a != b), 0)
            op = MapOperator("Slice", [dim, before[dim] // after[dim], op.args[dim] // after[dim]])
        out.append(op)
    return out


def _to_strided(ops: Ops, local: Sequence[int]) -> Ops:
    out, shapes = [], _shapes(ops, local)
    for op, before, after in zip(ops, shapes, shapes[1:]):
        if op.name == "Slice":
            dim, _, index = op.args
            begin, end = [0] * len(before), list(before)
            begin[dim], end[dim] = index * after[dim], (index + 1) * after[dim]
            op = MapOperator("StridedSlice", [*begin, *end, *[1] * len(before)])
        out.append(op)
    return out


def _drop_reshapes(ops: Ops, local: Sequence[int]) -> Ops:
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

    def compare(a: MapOperator, b: MapOperator) -> int:
        rank = {"AllConcat": 0, "Slice": 1}
        if a.name != b.name:
            return rank[a.name] - rank[b.name]
        number: int = b.args[-1] - a.args[-1] if a.name == "AllConcat" else a.args[0] - b.args[0]
        return number

    out: Ops = []
    run: Ops = []
    for op in [*ops, MapOperator("Reshape", [])]:
        if op.name == "Reshape":
            out += [*sorted(run, key=cmp_to_key(compare)), op]
            run = []
        else:
            run.append(op)
    return out[:-1]


def _concat_in_front(ops: Ops, local: Sequence[int]) -> Ops:
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


def _slice_in_front(ops: Ops, local: Sequence[int]) -> Ops:
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


def merged_concat(first: Sequence[int], second: Sequence[int]) -> list[int] | None:
    """Two AllConcats of one dim as one, if the second continues the steps of the first.

    >>> merged_concat([0, 2, 0], [0, 4, 0])
    [0, 2, 4, 6, 0]
    """
    (*a, dim), (*b, other) = first, second
    if dim != other or (a[1] - a[0]) * len(a) != b[1] - b[0]:
        return None
    shared = [rank for rank in a if rank in b]
    if len(shared) != 1:
        return None
    start = b[0] - (shared[0] - a[0])
    return [*range(start, start + (b[1] - b[0]) * len(b), a[1] - a[0]), dim]


def _merge_concats(ops: Ops, ranks: Sequence[int] | None) -> Ops:
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


def _merge_slices(ops: Ops, local: Sequence[int]) -> Ops:
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
