"""Who sends which box to whom in a placing step, seen from one rank: pure, derived from the two layouts."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np

from spmdsim.core import Bounds
from spmdsim.core.layout import split_block
from spmdsim.core.step import Index, Step, overlap, within
from spmdsim.errors import PlanError


def flat_offset(shape: tuple[int, ...], index: Index) -> int | None:
    """Return the place of a contiguous box in the flat array, or None if the box is not contiguous.

    >>> flat_offset((4, 6), (slice(1, 3), slice(0, 6))), flat_offset((4, 6), (slice(0, 2), slice(0, 3)))
    (6, None)
    """
    stride, offset, whole = 1, 0, True
    for size, part in zip(reversed(shape), reversed(index)):
        length = part.stop - part.start
        if not whole and length != 1:
            return None
        whole = whole and length == size
        offset += part.start * stride
        stride *= size
    return offset


@dataclass(frozen=True)
class MemberBox:
    """A box that goes to or comes from a member: its number in the communicator, and where it is locally."""

    member: int
    index: Index

    @property
    def count(self) -> int:
        """Elements of the box."""
        return math.prod([part.stop - part.start for part in self.index])

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the box."""
        return tuple(part.stop - part.start for part in self.index)


@dataclass(frozen=True)
class RankTransfers:
    """All that one rank sends and receives in a step.

    Args:
        members: the world ranks of the communicator, sorted.
        me: this rank's number among them.
        source: shape of this rank's shard before; ``target``: after.
        own: the box that stays, in the source and in the target, or None.
        gathered: per member the box it contributes to the common target of an all_gather, or None.
        largest: the largest number of elements that any member holds before or after.
        swapped: whether the source and the target are one equal block per member, in their order, for all members.
    """

    members: tuple[int, ...]
    me: int
    source: tuple[int, ...]
    target: tuple[int, ...]
    sends: tuple[MemberBox, ...]
    receives: tuple[MemberBox, ...]
    own: tuple[Index, Index] | None
    gathered: tuple[Index | None, ...] | None
    largest: int
    swapped: bool = False


def _shape(box: Bounds) -> tuple[int, ...]:
    return tuple([stop - start for start, stop in box])


def group_transfers(step: Step, rank: int) -> RankTransfers:
    """Return the transfers of a placing step inside a group of the mesh."""
    members = tuple(sorted(step.group(rank)))
    before = [step.src.bounds(step.shape, m) for m in members]
    after = [step.dst.bounds(step.shape, m) for m in members]
    me = members.index(rank)
    sends, receives, own, seen, volume = [], [], None, set(), 0
    # Members with equal boxes are replicas: the own copy serves this rank, else the first one.
    for k in sorted(range(len(members)), key=lambda k: k != me):
        box = overlap(before[k], after[me])
        if box is None or before[k] in seen:
            continue
        seen.add(before[k])
        volume += math.prod(_shape(box))
        if k == me:
            own = (within(box, before[me]), within(box, after[me]))
        else:
            receives.append(MemberBox(k, within(box, after[me])))
    if volume != math.prod(_shape(after[me])):
        raise PlanError(
            f"{step.collective} over {step.axes} cannot take {step.src} to {step.dst}: "
            f"the group does not hold the box {after[me]}"
        )
    first = {box: k for k, box in reversed(list(enumerate(before)))}
    for k in range(len(members)):
        box = overlap(before[me], after[k])
        if k != me and box is not None and before[k] != before[me] and first[before[me]] == me:
            sends.append(MemberBox(k, within(box, before[me])))
    gathered = None
    held = [box for box in before if math.prod(_shape(box))]
    if len(set(after)) == 1 and len(set(held)) == len(held):
        gathered = tuple(within(b, after[0]) if math.prod(_shape(b)) else None for b in before)
    largest = max(math.prod(_shape(box)) for box in (*before, *after))
    transfers = RankTransfers(
        members,
        me,
        _shape(before[me]),
        _shape(after[me]),
        tuple(sends),
        tuple(sorted(receives, key=lambda p: p.member)),
        own,
        gathered,
        largest,
    )
    return replace(transfers, swapped=_alike(before, after) and _blocks(transfers))


def _alike(before: list[Bounds], after: list[Bounds]) -> bool:
    """Return True if the boxes of all members have equal shapes, split in one dimension before and another one after.

    They then cut their boxes in the same places: what one of them finds out about its blocks holds for all.
    """
    shapes = {_shape(box) for box in before}, {_shape(box) for box in after}
    split, joined = _differing(before), _differing(after)
    return len(shapes[0]) == len(shapes[1]) == len(split) == len(joined) == 1 and split != joined


def _differing(boxes: list[Bounds]) -> list[int]:
    return [dim for dim, sides in enumerate(zip(*boxes)) if len(set(sides)) > 1]


def _blocks(traffic: RankTransfers) -> bool:
    """Return True if source and target are one equal block per member, in the order of the members."""
    if traffic.own is None:
        return False
    for stays, pieces, shape in (
        (traffic.own[0], traffic.sends, traffic.source),
        (traffic.own[1], traffic.receives, traffic.target),
    ):
        block, rest = divmod(math.prod(shape), len(traffic.members))
        places = {piece.member: piece.index for piece in pieces} | {traffic.me: stays}
        for member in range(len(traffic.members)):
            if rest or member not in places or flat_offset(shape, places[member]) != member * block:
                return False
    return True


def exchange_transfers(step: Step, rank: int) -> RankTransfers:
    """Return the transfers of a direct exchange between two layouts, over the ranks of both meshes."""
    from spmdsim.redistribution.exchange.direct import exchange_between

    meshes = step.src.mesh, step.dst.mesh
    number: Any = range(max(mesh.size for mesh in meshes))
    if any(mesh.ranks is not None for mesh in meshes):
        number = {
            rank: k for k, rank in enumerate(sorted({rank for mesh in meshes for rank in mesh.rank_list}))
        }
    members = tuple(number)
    source, target = step.src.bounds(step.shape, rank), step.dst.bounds(step.shape, rank)
    between = exchange_between(step.src, step.dst, step.shape)
    incoming, outgoing = between.transfers(rank, True), between.transfers(rank, False)
    own = next(((within(t.box, source), within(t.box, target)) for t in incoming if t.peer == rank), None)
    return RankTransfers(
        members,
        number[rank],
        _shape(source),
        _shape(target),
        tuple([MemberBox(number[t.peer], within(t.box, source)) for t in outgoing if t.peer != rank]),
        tuple([MemberBox(number[t.peer], within(t.box, target)) for t in incoming if t.peer != rank]),
        own,
        None,
        math.prod(step.shape),
    )


@dataclass(frozen=True)
class Side:
    """One side of a packed exchange: where each member's pieces are in the flat buffer, one after the other."""

    pieces: tuple[MemberBox, ...]
    counts: list[int]
    offsets: list[int]
    total: int
    direct: bool


def packed_side(pieces: tuple[MemberBox, ...], shape: tuple[int, ...], size: int) -> Side:
    """Return one side of a packed exchange. Pieces stay where they are if all of them are contiguous."""
    counts, offsets, packed = [0] * size, [0] * size, 0
    places = [flat_offset(shape, piece.index) for piece in pieces]
    direct = None not in places and len({piece.member for piece in pieces}) == len(pieces)
    for piece, offset in zip(pieces, places):
        if not counts[piece.member]:
            offsets[piece.member] = offset if direct and offset is not None else packed
        counts[piece.member] += piece.count
        packed += piece.count
    return Side(pieces, counts, offsets, packed, direct)


@dataclass(frozen=True)
class Blocks:
    """Where each member's block is in this rank's source, in the order of the communicator.

    Args:
        offsets: where it begins: in the source itself if ``direct``, else in the packed buffer.
        direct: whether all blocks are contiguous in the source.
        packed: whether the blocks follow one another without gaps (in the source, if ``direct``).
        whole: whether they are all of the source.
        target: shape of this rank's block.
    """

    indices: tuple[Index, ...]
    counts: list[int]
    offsets: list[int]
    direct: bool
    packed: bool
    whole: bool
    target: tuple[int, ...]


def blocks(step: Step, members: tuple[int, ...], rank: int) -> Blocks:
    """Return the blocks of a reduce_scatter; members are sorted world ranks."""
    source = step.src.bounds(step.shape, rank)
    shape = _shape(source)
    indices = []
    for member in members:
        box = step.dst.bounds(step.shape, member)
        if any(start == stop for start, stop in box):
            box = tuple((base, base + stop - start) for (start, stop), (base, _) in zip(box, source))
        indices.append(within(box, source))
    counts = [math.prod(part.stop - part.start for part in index) for index in indices]
    running = [0, *accumulate(counts)][:-1]
    starts = [flat_offset(shape, index) if count else 0 for index, count in zip(indices, counts)]
    direct = None not in starts
    in_place = direct and all(f == r for f, r, count in zip(starts, running, counts) if count)
    offsets = [int(f or 0) for f in starts] if direct and not in_place else running
    return Blocks(
        tuple(indices),
        counts,
        offsets,
        direct,
        in_place or not direct,
        sum(counts) == math.prod(shape),
        step.dst.local_shape(step.shape, rank),
    )


def count_blocks(step: Step, rank: int) -> Blocks:
    """Return the `blocks` of a reduce_scatter among very many ranks without their indices: enough for its buffers.

    A dim's cuts depend on the member's coordinates along a few axes, so all members are counted at once by NumPy.
    """
    mesh = step.src.mesh
    axes = sorted(step.axes, key=mesh.axis_index)
    sizes = [mesh.size_of[axis] for axis in axes]
    place = dict(zip(mesh.axes, mesh.coords(rank))) | dict(zip(axes, np.indices(sizes, sparse=True)))
    if mesh.ranks is None:
        order: Any = slice(None)
    else:
        order = np.argsort(mesh.group(rank, *axes))
    shape = step.src.local_shape(step.shape, rank)
    counts: Any = np.ones(math.prod(sizes), np.int64)
    offset, is_whole, is_contiguous, stride = 0 * counts, counts > 0, counts > 0, 1
    for dim in reversed(range(len(shape))):
        first, (start, length) = step.src.bounds(step.shape, rank)[dim][0], (0, step.shape[dim])
        for axis in step.dst.dims[dim]:
            start, length = split_block(start, length, mesh.size_of[axis], place[axis])
        start, length = (np.broadcast_to(one, sizes).ravel()[order] for one in (start, length))
        # A box is contiguous if it is whole in its last dims and of length 1 in those before: see `flat_offset`.
        is_contiguous &= is_whole | (length == 1)
        is_whole &= length == shape[dim]
        counts = counts * length
        offset = offset + (start - first) * stride
        stride *= shape[dim]
    held = counts > 0
    running = np.cumsum(counts) - counts
    direct = bool(is_contiguous[held].all())
    in_place = direct and bool((offset == running)[held].all())
    target = step.dst.local_shape(step.shape, rank)
    offsets = (offset * held if direct and not in_place else running).tolist()
    total = int(counts.sum())
    return Blocks(
        (), counts.tolist(), offsets, direct, in_place or not direct, total == math.prod(shape), target
    )


def row_count(traffic: RankTransfers) -> int | None:
    """Return the number of rows of the target if each row has an equal part of each member, in order; else None."""
    assert traffic.gathered is not None
    first, place = traffic.gathered[0], 0
    if first is None:
        return None
    part = MemberBox(0, first).shape
    dim = next((d for d, size in enumerate(part) if size != traffic.target[d]), None)
    if dim is None or part[dim] * len(traffic.gathered) != traffic.target[dim]:
        return None
    for index in traffic.gathered:
        if index is None or MemberBox(0, index).shape != part or index[dim].start != place:
            return None
        place += part[dim]
    return math.prod(part[:dim])
