"""List the boxes that one rank sends and receives in a step, derived from the two layouts alone.

A *placing* step (exchange, all_gather, all_to_all) moves boxes as they are: read :class:`RankTransfers`, then
:func:`group_transfers` and :func:`exchange_transfers`. A reduce_scatter cuts the shard into one block per member of
the group: read :class:`Blocks` and :func:`list_blocks`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np

from spmdsim.core import Bounds
from spmdsim.core.layout import split_block
from spmdsim.core.step import Index, Step, overlap, volume, within
from spmdsim.errors import PlanError


def flat_offset(shape: tuple[int, ...], index: Index) -> int | None:
    """Return the offset of a contiguous box in the flat array, or None for other boxes.

    The array is in row-major order; the offset is in elements.

    Args:
        shape: the shape of the array.
        index: the slices of the box, with start, stop and step 1.

    >>> flat_offset((4, 6), (slice(1, 3), slice(0, 6))), flat_offset((4, 6), (slice(0, 2), slice(0, 3)))
    (6, None)
    """
    stride, offset, is_whole = 1, 0, True
    for size, slice_ in zip(reversed(shape), reversed(index)):
        length = slice_.stop - slice_.start
        if not is_whole and length != 1:
            return None
        is_whole = is_whole and length == size
        offset += slice_.start * stride
        stride *= size
    return offset


@dataclass(frozen=True)
class MemberBox:
    """Box that goes to or comes from a member of a communicator.

    Attributes:
        member: the member's number in the communicator.
        index: the box in this rank's shard.
    """

    member: int
    index: Index

    @property
    def count(self) -> int:
        """Number of elements of the box."""
        return math.prod([slice_.stop - slice_.start for slice_ in self.index])

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the box."""
        return tuple(slice_.stop - slice_.start for slice_ in self.index)


@dataclass(frozen=True)
class RankTransfers:
    """Transfers that one rank sends and receives in a step.

    Args:
        members: the world ranks of the communicator, sorted.
        me: this rank's number among them.
        source: the shape of this rank's shard before.
        target: the shape of this rank's shard after.
        sends: the boxes that go to other members.
        receives: the boxes that come from other members.
        local_box: the box that stays, as an index of the source and one of the target, or None.
        gathered: for an all_gather, per member the index of its box in the target, or None without elements; None for
            other steps.
        largest: the largest number of elements that any member owns before or after.
        swapped: True if, on all members, source and target are one equal block per member, in the order of the
            members.
    """

    members: tuple[int, ...]
    me: int
    source: tuple[int, ...]
    target: tuple[int, ...]
    sends: tuple[MemberBox, ...]
    receives: tuple[MemberBox, ...]
    local_box: tuple[Index, Index] | None
    gathered: tuple[Index | None, ...] | None
    largest: int
    swapped: bool = False


def _box_shape(box: Bounds) -> tuple[int, ...]:
    """Return the shape of a box."""
    return tuple([stop - start for start, stop in box])


def group_transfers(step: Step, rank: int) -> RankTransfers:
    """Return the transfers of an all_gather or all_to_all inside the group of ``rank``.

    The members are the ranks of the group, sorted. A box is the overlap of one member's source box and another's target
    box; empty boxes are left out. If several members own one source box, a receiver that is one of them takes its own
    copy. Other receivers take the copy of the first of them.

    - ``gathered`` is set if the step is an all_gather: all targets are equal and the sources differ.
    - ``swapped`` is True if all members cut their shards into one equal contiguous block per member, in their order.

    For example, 2 ranks own 3 x 2 halves of a 3 x 4 matrix and gather it: rank 0 sends its half, receives the columns
    2 and 3, and keeps the columns 0 and 1.

    Args:
        step: the step.
        rank: a rank of its mesh.

    Raises:
        PlanError: If the group's source boxes do not cover the rank's target box.
    """
    members = tuple(sorted(step.group(rank)))
    before = [step.src.bounds(step.shape, member) for member in members]
    after = [step.dst.bounds(step.shape, member) for member in members]
    me = members.index(rank)
    receives, local_box = _receive_from_members(before, after[me], me)
    covered_elements = sum(box.count for box in receives)
    if local_box is not None:
        covered_elements += MemberBox(me, local_box[0]).count
    if covered_elements != volume(after[me]):
        raise PlanError(
            f"{step.collective} over {step.axes} cannot take {step.src} to {step.dst}: "
            f"the group does not hold the box {after[me]}"
        )
    transfers = RankTransfers(
        members=members,
        me=me,
        source=_box_shape(before[me]),
        target=_box_shape(after[me]),
        sends=_send_to_members(before, after, me),
        receives=receives,
        local_box=local_box,
        gathered=_gathered_boxes(before, after),
        largest=max(map(volume, (*before, *after))),
    )
    return replace(
        transfers, swapped=_have_equal_shapes(before, after) and _can_use_plain_alltoall(transfers)
    )


def _receive_from_members(
    before: list[Bounds], target: Bounds, me: int
) -> tuple[tuple[MemberBox, ...], tuple[Index, Index] | None]:
    """Return the boxes that member ``me`` receives, and the box that it keeps.

    Members with equal source boxes are replicas: ``me`` reads its own box if it has one, else that of the first
    replica. Boxes without elements are left out. For example, members 0 and 1 own elements 0-1, member 2 owns 2-3, and
    member 1 wants all: it keeps 0-1 and receives 2-3 from member 2.

    Args:
        before: the source box of each member.
        target: the box that ``me`` wants.
        me: the number of the member.

    Returns:
        ``(receives, local_box)`` as in :class:`RankTransfers`; ``local_box`` is None if nothing is kept.
    """
    receives, local_box, sources = [], None, set()
    for member in (me, *(member for member in range(len(before)) if member != me)):
        box = overlap(before[member], target)
        if box is None or before[member] in sources:
            continue
        sources.add(before[member])
        if member == me:
            local_box = (within(box, before[me]), within(box, target))
        else:
            receives.append(MemberBox(member, within(box, target)))
    return tuple(receives), local_box


def _send_to_members(before: list[Bounds], after: list[Bounds], me: int) -> tuple[MemberBox, ...]:
    """Return the boxes that a member sends to the other members of its group.

    Of members with equal source boxes, the first one sends for all; the others get (). Members that have that source
    box need nothing from it, and empty boxes are left out.

    Args:
        before: the source box of each member.
        after: the target box of each member.
        me: the number of the sending member.
    """
    own_box = before[me]
    is_first_owner = before.index(own_box) == me
    if not is_first_owner:
        return ()
    sends = []
    for member, target in enumerate(after):
        box = overlap(own_box, target)
        if box is not None and before[member] != own_box:
            sends.append(MemberBox(member, within(box, own_box)))
    return tuple(sends)


def _gathered_boxes(before: list[Bounds], after: list[Bounds]) -> tuple[Index | None, ...] | None:
    """Return the index of each member's source box in the target if the step is an all_gather, else None.

    In an all_gather, all targets are equal and the source boxes with elements differ. An empty box has the index None.
    """
    nonempty_boxes = [box for box in before if volume(box)]
    if len(set(after)) > 1 or len(set(nonempty_boxes)) < len(nonempty_boxes):
        return None
    return tuple(within(box, after[0]) if volume(box) else None for box in before)


def _have_equal_shapes(before: list[Bounds], after: list[Bounds]) -> bool:
    """Return True if the split moves from one dimension to another one, with equal shapes.

    That is, all source boxes have one shape and differ in one dimension; all target boxes have one shape and differ in
    another dimension. Then all members cut their boxes at equal positions, so a fact about the blocks of one member
    holds for all.
    """
    source_shapes, target_shapes = {_box_shape(box) for box in before}, {_box_shape(box) for box in after}
    split_before, split_after = _differing(before), _differing(after)
    return (
        len(source_shapes) == len(target_shapes) == len(split_before) == len(split_after) == 1
        and split_before != split_after
    )


def _differing(boxes: list[Bounds]) -> list[int]:
    """Return the dimensions in which the boxes differ."""
    return [dim for dim, sides in enumerate(zip(*boxes)) if len(set(sides)) > 1]


def _can_use_plain_alltoall(traffic: RankTransfers) -> bool:
    """Return True if MPI's alltoall can move a rank's elements without packing.

    For that, the shard before must consist of equal contiguous blocks, block ``k`` for member ``k``. The shard after
    must consist of equal contiguous blocks, block ``k`` from member ``k``. One block stays on this rank; a rank that
    keeps nothing gets False. For example, rank 0 of 2 keeps the first half of a vector and sends the second half.

    Args:
        traffic: the transfers of one rank.
    """
    if traffic.local_box is None:
        return False
    for own_index, boxes, shape in (
        (traffic.local_box[0], traffic.sends, traffic.source),
        (traffic.local_box[1], traffic.receives, traffic.target),
    ):
        block_size, remainder = divmod(math.prod(shape), len(traffic.members))
        if remainder:
            return False
        index_of_member = {box.member: box.index for box in boxes} | {traffic.me: own_index}
        for member in range(len(traffic.members)):
            index = index_of_member.get(member)
            if index is None or flat_offset(shape, index) != member * block_size:
                return False
    return True


def exchange_transfers(step: Step, rank: int) -> RankTransfers:
    """Return the transfers of one rank in a direct exchange.

    The members are the ranks of both meshes, sorted. Boxes to and from other members are those of
    :func:`~spmdsim.redistribution.exchange.direct.exchange_between`. ``gathered`` is None, ``swapped`` is False, and
    ``largest`` is the number of elements of the whole tensor, which no message exceeds.

    Args:
        step: the exchange.
        rank: a rank of at least one of the two meshes.

    Raises:
        PlanError: If pending values would have to be reduced.
    """
    from spmdsim.redistribution.exchange.direct import exchange_between

    members = tuple(sorted({*step.src.mesh.rank_list, *step.dst.mesh.rank_list}))
    number_of = {member: number for number, member in enumerate(members)}
    source, target = step.src.bounds(step.shape, rank), step.dst.bounds(step.shape, rank)
    between = exchange_between(step.src, step.dst, step.shape)
    incoming, outgoing = between.transfers(rank, True), between.transfers(rank, False)
    own_box = next(((within(t.box, source), within(t.box, target)) for t in incoming if t.peer == rank), None)
    return RankTransfers(
        members=members,
        me=number_of[rank],
        source=_box_shape(source),
        target=_box_shape(target),
        sends=tuple(
            [MemberBox(number_of[t.peer], within(t.box, source)) for t in outgoing if t.peer != rank]
        ),
        receives=tuple(
            [MemberBox(number_of[t.peer], within(t.box, target)) for t in incoming if t.peer != rank]
        ),
        local_box=own_box,
        gathered=None,
        largest=math.prod(step.shape),
    )


@dataclass(frozen=True)
class Side:
    """Side of a packed exchange: the flat buffer that has the boxes of each member, one after the other.

    Attributes:
        pieces: the boxes.
        counts: the number of elements of each member.
        offsets: the offset of each member's elements in the buffer, or in the shard if ``direct``.
        total: the number of all elements.
        direct: True if the boxes are contiguous in the shard, so that no buffer is needed.
    """

    pieces: tuple[MemberBox, ...]
    counts: list[int]
    offsets: list[int]
    total: int
    direct: bool


def arrange_side(pieces: tuple[MemberBox, ...], shape: tuple[int, ...], size: int) -> Side:
    """Return one side of a packed exchange: counts and offsets by member of a rank's boxes.

    The side is ``direct``, without a buffer, if all boxes are contiguous in the shard and no member has two. Otherwise
    offsets count in a buffer with the boxes in the given order: boxes of 2 and 3 elements are at 0 and 2. Boxes of one
    member must follow one another.

    Args:
        pieces: the boxes that the rank sends or receives.
        shape: the shape of the rank's shard.
        size: the number of members.
    """
    counts, offsets, packed = [0] * size, [0] * size, 0
    shard_offsets = [flat_offset(shape, piece.index) for piece in pieces]
    has_one_box_per_member = len({piece.member for piece in pieces}) == len(pieces)
    direct = None not in shard_offsets and has_one_box_per_member
    for piece, shard_offset in zip(pieces, shard_offsets):
        is_first_of_member = not counts[piece.member]
        if is_first_of_member:
            offsets[piece.member] = shard_offset if direct and shard_offset is not None else packed
        counts[piece.member] += piece.count
        packed += piece.count
    return Side(pieces, counts, offsets, packed, direct)


@dataclass(frozen=True)
class Blocks:
    """Position of each member's block in this rank's source, in the order of the communicator.

    Args:
        indices: the index of each block in the source.
        counts: the number of elements of each block.
        offsets: the start of each block: in the source if ``direct``, else in the packed buffer.
        direct: True if all blocks are contiguous in the source.
        packed: True if the blocks follow one another without gaps (in the source, if ``direct``).
        covers_source: True if the blocks cover the source.
        target: the shape of this rank's block.
    """

    indices: tuple[Index, ...]
    counts: list[int]
    offsets: list[int]
    direct: bool
    packed: bool
    covers_source: bool
    target: tuple[int, ...]


def list_blocks(step: Step, members: tuple[int, ...], rank: int) -> Blocks:
    """Return the block of each member in the shard of ``rank``, for a reduce_scatter.

    A member's block is its target box, as an index of the rank's source; an empty block gets an empty index at the
    start.

    - ``direct``: each block is contiguous in the source. If not, the blocks are packed into a buffer, and the offsets
      are those in the buffer.
    - ``packed``: the blocks follow one another without gaps, in the order of the members, in the source or the buffer.
    - ``covers_source``: False if the source has elements that no member of the group gets.

    For example, 2 members scatter a 4 x 3 source by rows: the blocks have 6 elements each, at 0 and 6, direct and
    packed. By columns, the blocks of a 3 x 4 source are not direct; they are at 0 and 6 of a buffer.

    Args:
        step: the reduce_scatter.
        members: the sorted world ranks of the group of ``rank``.
        rank: the rank.
    """
    source = step.src.bounds(step.shape, rank)
    shape = _box_shape(source)
    indices = []
    for member in members:
        box = step.dst.bounds(step.shape, member)
        if any(start == stop for start, stop in box):
            box = tuple((base, base + stop - start) for (start, stop), (base, _) in zip(box, source))
        indices.append(within(box, source))
    counts = [math.prod(interval.stop - interval.start for interval in index) for index in indices]
    packed_starts = [0, *accumulate(counts)][:-1]
    starts = [flat_offset(shape, index) if count else 0 for index, count in zip(indices, counts)]
    direct = None not in starts
    has_no_gaps = direct and all(
        start == packed_start for start, packed_start, count in zip(starts, packed_starts, counts) if count
    )
    offsets = [int(start or 0) for start in starts] if direct and not has_no_gaps else packed_starts
    return Blocks(
        indices=tuple(indices),
        counts=counts,
        offsets=offsets,
        direct=direct,
        packed=has_no_gaps or not direct,
        covers_source=sum(counts) == math.prod(shape),
        target=step.dst.local_shape(step.shape, rank),
    )


def count_blocks(step: Step, rank: int) -> Blocks:
    """Return what :func:`list_blocks` returns, but with empty ``indices``; much faster for large groups.

    Counts, offsets and flags suffice to size buffers. NumPy computes them for all members at once. The members are all
    ranks of the group of ``rank``, in the order of their ranks.

    Args:
        step: the reduce_scatter.
        rank: the rank in whose shard the blocks are.
    """
    shape = step.src.local_shape(step.shape, rank)
    counts, starts, is_contiguous = _count_all_members(step, rank)
    nonempty = counts > 0
    packed_starts = np.cumsum(counts) - counts
    direct = bool(is_contiguous[nonempty].all())
    has_no_gaps = direct and bool((starts == packed_starts)[nonempty].all())
    return Blocks(
        indices=(),
        counts=counts.tolist(),
        offsets=(starts * nonempty if direct and not has_no_gaps else packed_starts).tolist(),
        direct=direct,
        packed=has_no_gaps or not direct,
        covers_source=int(counts.sum()) == math.prod(shape),
        target=step.dst.local_shape(step.shape, rank),
    )


def _count_all_members(step: Step, rank: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return arrays with the size and position of each member's block in the shard of ``rank``.

    A dimension's cuts depend only on the member's coordinates along few axes, so NumPy computes a dimension of all
    blocks at once, from the last dimension to the first.

    Args:
        step: the reduce_scatter.
        rank: the rank in whose shard the blocks are.

    Returns:
        ``(counts, starts, is_contiguous)``, by member: the elements of the block, the row-major offset of its first
        element in the shard, and True if the block is contiguous in it.
    """
    mesh, shape = step.src.mesh, step.src.local_shape(step.shape, rank)
    sizes, coordinates, order = _list_member_coordinates(step, rank)
    member_count, stride = math.prod(sizes), 1
    counts: Any = np.ones(member_count, np.int64)
    starts: Any = np.zeros(member_count, np.int64)
    is_whole, is_contiguous = np.ones(member_count, bool), np.ones(member_count, bool)
    source = step.src.bounds(step.shape, rank)
    for dim in reversed(range(len(shape))):
        shard_start = source[dim][0]
        start, length = 0, step.shape[dim]
        for axis in step.dst.dims[dim]:
            start, length = split_block(start, length, mesh.size_of[axis], coordinates[axis])
        start, length = (np.broadcast_to(array, sizes).ravel()[order] for array in (start, length))
        # A box is contiguous if it is whole in its last dims and of length 1 in those before: see `flat_offset`.
        is_contiguous &= is_whole | (length == 1)
        is_whole &= length == shape[dim]
        counts = counts * length
        starts = starts + (start - shard_start) * stride
        stride *= shape[dim]
    return counts, starts, is_contiguous


def _list_member_coordinates(step: Step, rank: int) -> tuple[list[int], dict[str, Any], Any]:
    """Return the coordinates of all members of the group of ``rank``, as arrays that broadcast.

    For example, on a 2 x 4 mesh with axes a and b, the group of rank 5 along b has the sizes [4] and the coordinates
    ``{"a": 1, "b": [0, 1, 2, 3]}``.

    Args:
        step: a collective step.
        rank: a rank of its mesh.

    Returns:
        ``(sizes, coordinates, order)``: the sizes of the group's axes in mesh order; for each axis of the mesh the
        coordinates of the members, a number outside of the group's axes; and the index that sorts the members by rank.
    """
    mesh = step.src.mesh
    axes = sorted(step.axes, key=mesh.axis_index)
    sizes = [mesh.size_of[axis] for axis in axes]
    own_coordinates: dict[str, Any] = dict(zip(mesh.axes, mesh.coords(rank)))
    order: Any = slice(None) if mesh.ranks is None else np.argsort(mesh.group(rank, *axes))
    return sizes, own_coordinates | dict(zip(axes, np.indices(sizes, sparse=True))), order


def count_rows(traffic: RankTransfers) -> int | None:
    """Return the number of rows of an all_gather's result, or None without equal rows.

    The members' blocks follow one another along one dimension. A row consists of this dimension and the dimensions
    after it; the number of rows is the product of the dimensions before it. For example, two blocks of 3 x 2 side by
    side make a matrix of 3 x 4: each of its 3 rows has elements of both blocks. Two blocks of 2 x 4 below each other
    make a matrix of 4 x 4. It counts as one row, because no dimension comes before the gathered one.

    The result is None if blocks are empty, differ in shape, are not in the order of the members, or do not add up to
    the target. A group of one member gives None, too.

    Args:
        traffic: the transfers of an all_gather; ``gathered`` must not be None.
    """
    assert traffic.gathered is not None
    first, position = traffic.gathered[0], 0
    if first is None:
        return None
    block_shape = MemberBox(0, first).shape
    dim = next((d for d, size in enumerate(block_shape) if size != traffic.target[d]), None)
    if dim is None or block_shape[dim] * len(traffic.gathered) != traffic.target[dim]:
        return None
    for index in traffic.gathered:
        if index is None or MemberBox(0, index).shape != block_shape or index[dim].start != position:
            return None
        position += block_shape[dim]
    return math.prod(block_shape[:dim])
