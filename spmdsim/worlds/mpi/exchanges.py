"""Steps that are one or a few exchanges: by element numbers, direct reductions, scans, arrays of any length, and halos.

A halo exchange takes one message from each neighbour that owns elements of the window, and one to each that reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import NamedTuple
from weakref import ref

import numpy as np
from mpi4py import MPI

from spmdsim.core import Bounds
from spmdsim.core.elements import contiguous, fold, identity
from spmdsim.core.step import Index, Step, within
from spmdsim.errors import WorldError
from spmdsim.layout.element_type import check_reduce
from spmdsim.redistribution.exchange.direct_reduction import Part, list_rounds, reduction_parts
from spmdsim.redistribution.exchange.flat import flat_receives, flat_sends
from spmdsim.redistribution.implementations.implementation import Implementation
from spmdsim.redistribution.implementations.rank_transfers import flat_offset
from spmdsim.redistribution.steps import halo
from spmdsim.redistribution.steps.group_steps import Parts, ScanStep, join_arrays
from spmdsim.redistribution.steps.halo import HaloPiece, HaloStep, Room
from spmdsim.worlds.local_steps import Arrived, add_on, add_up, assemble_windows, cut_out
from spmdsim.worlds.mpi import messages
from spmdsim.worlds.mpi.counted import Counted
from spmdsim.worlds.mpi.messages import Stretches, counted_parts, element, native_op, number_view
from spmdsim.worlds.mpi.reducing import ReduceGroup
from spmdsim.worlds.pool import Surroundings, allocate_with_margins, allocator, surroundings, take_buffer
from spmdsim.worlds.programs import Run

#: An array per part, by its number.
Arrays = dict[int, np.ndarray]


def derive_numbered_exchange(
    step: Step, rank: int, comm: Counted, members: Sequence[int], dtype: np.dtype
) -> Run:
    """Return the function that runs an exchange which changes the shape of a tensor.

    An element is found by its number in row-major order of the global tensor, which does not change: element (1, 0) of
    shape (2, 3) has the number 3, and becomes element (1, 1) of shape (3, 2). The function takes this rank's shard. It
    sends the elements that other ranks want in one Alltoallv, and returns the new shard, a new array. All members must
    call it.

    Args:
        step: the step.
        rank: this rank.
        comm: the communicator of ``members``.
        members: the ranks of both meshes, sorted.
        dtype: the element type.
    """
    exchange = (step.src, step.dst, step.shape, step.shape_after, rank)
    received = flat_receives(*exchange)
    own_positions = next(
        ((transfer.source, transfer.target) for transfer in received if transfer.peer == rank), None
    )
    sent, outgoing = _side(dict(flat_sends(*exchange)), members, rank)
    received_layout, incoming = _side(
        {transfer.peer: transfer.target for transfer in received}, members, rank
    )
    shape, kind = step.dst.local_shape(step.shape_after, rank), element(dtype.itemsize)

    def run(array: np.ndarray) -> np.ndarray:
        flat, out = array.reshape(-1), take_buffer(shape, dtype)
        landing = take_buffer((len(incoming),), dtype)
        comm.Alltoallv([flat[outgoing], sent, kind], [landing, received_layout, kind])
        target = out.reshape(-1)
        target[incoming] = landing
        if own_positions is not None:
            target[own_positions[1]] = flat[own_positions[0]]
        return out

    return run


def _side(numbers: Arrays, members: Sequence[int], rank: int) -> tuple[Stretches, np.ndarray]:
    """Return the counts and offsets of each member's elements, and the numbers of all elements.

    The count of this rank is 0, and its elements are left out of the numbers.

    Args:
        numbers: the element numbers of each member; a member without elements may be missing.
        members: the ranks of the communicator, sorted.
        rank: this rank, whose own elements are left out.
    """
    empty_numbers = np.zeros(0, np.int64)
    lists = [empty_numbers if member == rank else numbers.get(member, empty_numbers) for member in members]
    return Stretches.of(list(map(len, lists))), np.concatenate(lists)


# -- the direct reduction: exchanges of packed boxes, a few, and additions between them ------------------


class _Round:
    """Messages of a rank in one round of a direct reduction.

    Args:
        shares: the parts of the reduction.
        hops: the messages of the round, as ``(sender, receiver, part number)``.
        members: the ranks of the communicator, sorted.
        me: this rank.
    """

    def __init__(
        self, shares: Sequence[Part], hops: list[tuple[int, int, int]], members: Sequence[int], me: int
    ) -> None:
        self.silent = not hops
        self.gives = [k for member in members for giver, taker, k in hops if (giver, taker) == (me, member)]
        self.takes = [(m, k) for m in members for giver, taker, k in hops if (giver, taker) == (m, me)]
        self.shapes = {k: tuple(stop - start for start, stop in shares[k].box) for _, k in self.takes}
        sent, received = dict.fromkeys(members, 0), dict.fromkeys(members, 0)
        for giver, taker, k in hops:
            if giver == me:
                sent[taker] += shares[k].count
            if taker == me:
                received[giver] += shares[k].count
        self.sent, self.received = Stretches.of(list(sent.values())), Stretches.of(list(received.values()))

    def run(self, comm: Counted, values: Arrays, dtype: np.dtype) -> list[tuple[int, int, np.ndarray]]:
        """Exchange the messages of this round of a direct reduction, in one Alltoallv.

        All members must call it. If no member has a message in this round, nothing is sent and [] is returned.

        Args:
            comm: the communicator.
            values: the array of each part (a box of the tensor) that this rank sends, by part number.
            dtype: the element type.

        Returns:
            ``(sender, part number, array)`` for each array that arrived, ordered by sender. The arrays are views of one
            buffer.
        """
        if self.silent:
            return []
        packed, landing = (
            take_buffer((sum(self.sent[0]),), dtype),
            take_buffer((sum(self.received[0]),), dtype),
        )
        start = 0
        for k in self.gives:
            box = values[k]
            packed[start : start + box.size].reshape(box.shape)[...] = box
            start += box.size
        kind = element(dtype.itemsize)
        comm.Alltoallv([packed, self.sent, kind], [landing, self.received, kind])
        arrived, start = [], 0
        for member, k in self.takes:
            stop = start + prod(self.shapes[k])
            arrived.append((member, k, landing[start:stop].reshape(self.shapes[k])))
            start = stop
        return arrived


def derive_direct_reduction(
    step: Step, rank: int, comm: Counted, members: Sequence[int], dtype: np.dtype
) -> Run:
    """Return the function that runs a direct reduction, "reduce_exchange", on this rank's shard.

    A direct reduction adds up shards and sends the results to their new owners in one step. It works on parts: boxes of
    the tensor whose elements all have their addends on one set of ranks. Each part has adders, which are ranks that add
    up some of its addends each (:func:`reduction_parts`). The function takes this rank's shard and exchanges messages
    in rounds:

    1. Ranks send their addends of a part to its adders, which add them up.
    2. The first adder sends its sum to the second one, which adds its own and sends it on; one round per further adder.
    3. The last adder sends the result to the ranks that own the part after the step.

    The function returns the new shard, a new array. All members must call it.

    Args:
        step: the step.
        rank: this rank.
        comm: the communicator of ``members``.
        members: the ranks of both meshes, sorted.
        dtype: the element type.

    Raises:
        WorldError: If the reduction is undefined for the element type.
    """
    op, shares = check_reduce(step.op, dtype), reduction_parts(step.src, step.dst, step.shape)
    contributions, *sum_rounds, results = [
        _Round(shares, hops, members, rank) for hops in list_rounds(shares)
    ]
    source_indices = _index_parts(shares, step.src.bounds(step.shape, rank)) if rank in step.src.mesh else {}
    target_indices = _index_parts(shares, step.dst.bounds(step.shape, rank)) if rank in step.dst.mesh else {}
    target = step.dst.local_shape(step.shape, rank) if rank in step.dst.mesh else (0,) * len(step.shape)
    own_adding = {
        k: ranks for k, share in enumerate(shares) for adder, ranks in share.adders if adder == rank
    }

    def first_sums(values: Arrays) -> Arrays:
        """Run the first round; return the sums of the parts that this rank adds up, by part number."""
        arrived = {(k, member): piece for member, k, piece in contributions.run(comm, values, dtype)}
        terms = {
            k: [values[k] if member == rank else arrived[k, member] for member in ranks]
            for k, ranks in own_adding.items()
        }
        return {k: add_up(op, arrays, len(shares[k].adders) == 1) for k, arrays in terms.items()}

    def run(array: np.ndarray) -> np.ndarray:
        """Run the rounds: add up addends, pass sums on, and send the results."""
        total = first_sums({k: array[index] for k, index in source_indices.items()})
        for arrays in sum_rounds:
            for _, k, piece in arrays.run(comm, total, dtype):
                total[k] = add_on(op, piece, total[k], shares[k].terms if shares[k].last == rank else None)
        arrived = results.run(comm, total, dtype)
        out = take_buffer(target, dtype)  # Allocate it after the packed buffers were freed.
        for _, k, piece in arrived:
            out[target_indices[k]] = piece
        for k in own_adding:
            if shares[k].last == rank and rank in shares[k].wanting:
                out[target_indices[k]] = total[k]
        return out

    return run


def _index_parts(shares: Sequence[Part], outer: Bounds) -> dict[int, tuple[slice, ...]]:
    """Return, by number, the position of each part of a reduction that lies in a box.

    The positions are slices relative to the box. Parts that are not fully inside are left out. For example, in the box
    of elements 4 to 7, a part with elements 5 and 6 is at ``slice(1, 3)``.

    Args:
        shares: the parts, by number.
        outer: the box.
    """
    return {
        k: within(share.box, outer)
        for k, share in enumerate(shares)
        if all(
            outer_start <= start and stop <= outer_stop
            for (start, stop), (outer_start, outer_stop) in zip(share.box, outer)
        )
    }


# -- in the middle of local functions ----------------------------------------------------------------------


def derive_scan(step: ScanStep, group: ReduceGroup, dtype: np.dtype, implementation: Implementation) -> Run:
    """Return the function that runs an exclusive scan on this rank's array.

    It reduces the arrays of the ranks before this one. For example, the arrays 3, 4, 5 of a group become the sums 0, 3,
    7. The first rank gets the reduction's identity. The function takes this rank's array and returns a new one. All
    ranks of the group must call it. The implementation decides how it runs:

    - "identity": it returns the identity, and sends nothing.
    - "scan": it calls MPI's Exscan, if MPI reduces as NumPy does.
    - In all other cases it gathers the arrays of all ranks, and reduces those before this rank.

    Args:
        step: the step; if ``step.backward``, the order of the group is reversed.
        group: the ranks, their order and communicator.
        dtype: the element type.
        implementation: how to run it.

    Raises:
        WorldError: If the reduction is undefined for the element type.
    """
    op = check_reduce(step.op, dtype)
    order = group.order[::-1] if step.backward else group.order
    me, identity_value, native = order.index(group.me), identity(op, dtype), native_op(op, dtype)
    if implementation.name == "identity":
        return lambda array: np.full(array.shape, identity_value)

    def gathered(array: np.ndarray) -> np.ndarray:
        """Gather all arrays and reduce those of the ranks before this one."""
        rows, kind = np.empty((len(order), *array.shape), dtype), element(dtype.itemsize)
        group.comm.Allgather([array, array.size, kind], [rows, array.size, kind])
        out = np.full(array.shape, identity_value)
        for position, k in enumerate(order[:me]):  # in the order of ``scan_exclusively``
            if position:
                fold(op, [out, rows[k]], out=out)
            else:
                out[...] = rows[k]
        return out

    if native is None or implementation.name != "scan":
        return gathered

    def exclusive(array: np.ndarray) -> np.ndarray:
        out = np.full(array.shape, identity_value)
        group.comm.Exscan(number_view(array), number_view(out), native)
        if me == 0:  # MPI leaves the result of the first rank undefined.
            out.fill(identity_value)
        return out

    return exclusive


def send_parts(comm: Counted, order: Sequence[int], rank: int, dtype: np.dtype, outgoing: Parts) -> Arrived:
    """Send an array of any length to each member of a group, and receive one from each.

    The arrays are one-dimensional and go in one Alltoallv. All members must call it.

    Args:
        comm: the communicator of the group.
        order: the ranks of the group in its order.
        rank: this rank.
        dtype: the element type.
        outgoing: the arrays to send, one per member in the order of the group, and the lengths of those that arrive.

    Returns:
        ``([arrays], [peers])``, two lists of one item, for this rank alone.
        ``arrays``: the array from each member in the order of the group; this rank's own array is a copy.
        ``peers``: ``(peer, elements)`` for each other rank that sent elements. For example, ((0, 2), (3, 5)).

    Raises:
        WorldError: If there are more elements than MPI can count.
    """
    places, me = [order.index(member) for member in sorted(order)], order.index(rank)
    parts, counts = [outgoing.arrays[k] for k in places], [int(outgoing.counts[k]) for k in places]
    if max(sum(map(len, parts)), sum(counts)) > messages.MAX_COUNT:
        raise WorldError(f"rank {rank} would exchange more elements than MPI can count in one call")
    packed, received, kind = join_arrays(parts), take_buffer((sum(counts),), dtype), element(dtype.itemsize)
    own_position = places.index(me)
    sent_layout, received_layout = Stretches.of(list(map(len, parts))), Stretches.of(counts)
    if len(order) > 1:
        comm.Alltoallv(
            [packed, sent_layout.without(own_position), kind],
            [received, received_layout.without(own_position), kind],
        )
    blocks = [outgoing.arrays[me]] * len(order)
    for k, start, count in zip(places, received_layout.starts, counts):
        blocks[k] = received[start : start + count]
    blocks[me][...] = outgoing.arrays[me]  # so that all received arrays lie in one stretch
    peers = tuple((order[k], count) for k, count in sorted(zip(places, counts)) if count and k != me)
    return [blocks], [peers]


#: The ranks of a group, sorted, and their communicator.
Members = tuple[tuple[int, ...], Counted]
#: The received boxes: pairs of an index of slices, in the padded buffer or else in the windows, and the elements.
Come = list[tuple[Index, np.ndarray]]
#: The largest number of filled parts of the room around a block.
FILLED = 64


class RoomMemory(NamedTuple):
    """Buffer with a block and, around it, the elements received from neighbours.

    Attributes:
        memory: the memory of the buffer, which records the indices of the boxes that were copied to it.
        padded: the buffer: an array with the block and the room around it.
        room: the positions of block and windows in it.
    """

    memory: Surroundings
    padded: np.ndarray
    room: Room

    @classmethod
    def of(cls, block: np.ndarray, room: Room) -> RoomMemory:
        """Return the padded buffer around a block, or a new one with a copy of the block.

        A padded buffer has the block and, around it, room for elements of neighbours. A new one is made if the block is
        not in a buffer with the shape of ``room``, or if :data:`FILLED` (64) boxes of that buffer were filled already.

        Args:
            block: this rank's block.
            room: the positions of block and windows in the buffer.
        """
        memory = surroundings(block)
        if memory is None or memory.block() is not block or memory.shape != room.shape:
            return cls.copied(block, room)
        if len(memory.filled) >= FILLED:
            return cls.copied(block, room)
        return cls(memory, np.ndarray(room.shape, block.dtype, block.base), room)

    @classmethod
    def copied(cls, block: np.ndarray, room: Room) -> RoomMemory:
        """Return a copy of the block in a new padded buffer."""
        memory = Surroundings(room.shape, block.dtype)
        padded: np.ndarray = np.ndarray(room.shape, block.dtype, np.asarray(memory))
        padded[room.block] = block
        return cls(memory, padded, room)

    def takes(self, come: Come) -> bool:
        """Return True if the buffer can take received boxes (pairs of an index and the elements).

        Where a box overlaps an earlier one, their elements must be equal, because other tensors may use the earlier
        ones.
        """
        return all(_are_consistent(self.padded, old, *new) for old in self.memory.filled for new in come)

    def filled(self, come: Come) -> np.ndarray:
        """Copy received boxes into the padded buffer around the block; return the windows.

        The windows are the part of the buffer that the exchange returns, as a view: elements of the block and of its
        neighbours. A box with the index of an earlier one is not copied again. The caller must have checked with
        :meth:`takes` that received boxes agree with earlier ones. All calls return views of one buffer.

        Args:
            come: the received boxes: pairs of an index of slices in the buffer, and the elements.
        """
        for index, array in come:
            if index not in self.memory.filled:
                self.padded[index] = array
                self.memory.filled.append(index)
        return self.padded[self.room.windows]


def find_block_copy(block: np.ndarray, windows: np.ndarray, room: Room) -> np.ndarray:
    """Return the copy of a block in the padded buffer of its windows, or the block itself.

    The block is returned if the windows have no such buffer, the block is in it already, or its copy is not
    C-contiguous. A tensor that takes the copy needs no other one for later slices: in ``u[:-2] + u[2:]`` both slices
    are views of the buffer that has the block of ``u`` and the received elements.

    Args:
        block: the block before a halo exchange.
        windows: the windows that the exchange returned.
        room: the positions of block and windows in the buffer.
    """
    memory = surroundings(windows)
    if memory is None or memory.block() is block:
        return block
    moved: np.ndarray = np.ndarray(memory.shape, block.dtype, windows.base)[room.block]
    if not moved.flags.c_contiguous:
        return block
    memory.block = ref(moved)
    return moved


def _are_consistent(buffer: np.ndarray, before: Index, index: Index, array: np.ndarray) -> bool:
    """Return True if received elements do not contradict elements that were received before.

    Return True, too, if the new elements do not overlap the earlier ones.

    Args:
        buffer: the padded buffer.
        before: the index of the earlier elements in the buffer.
        index: the index of the new elements in the buffer.
        array: the new elements. Where both overlap, they must be equal bit by bit.
    """
    common = [slice(max(a.start, b.start), min(a.stop, b.stop)) for a, b in zip(before, index)]
    if any(slice_.start >= slice_.stop for slice_ in common):
        return True
    common_elements = array[tuple(slice(a.start - b.start, a.stop - b.start) for a, b in zip(common, index))]
    return bool(common_elements.tobytes() == buffer[tuple(common)].tobytes())


class Arriving(NamedTuple):
    """Elements that come from another rank of the group.

    Attributes:
        number: the rank's number in the group's communicator.
        size: the number of elements.
        offset: the offset in the flat windows if the elements may be received there directly; else None.
        parts: for each box the elements in the message, its shape, and its index in the target.
    """

    number: int
    size: int
    offset: int | None
    parts: tuple[tuple[slice, Sequence[int], Index], ...]


def derive_halo_exchange(step: HaloStep, rank: int, group: Members | None, dtype: np.dtype) -> Run:
    """Return the function that runs a halo exchange, or its reverse, on this rank's shard.

    See :func:`assemble_windows` for windows. The function sends one message to each rank that needs elements of this
    one, and waits for its own. The windows may be a view of the block's memory. All ranks of the group must call it.

    Args:
        step: the step.
        rank: this rank.
        group: the ranks of the group and their communicator; None for a step in which nothing is sent.
        dtype: the element type.
    """
    shape = step.dst.local_shape(step.shape, rank)
    incoming, outgoing = halo.received_boxes(step, rank), halo.sent_boxes(step, rank)
    own_pieces = [piece for peer, pieces in incoming if peer == rank for piece in pieces]
    if group is None or not halo.moved_elements((*incoming, *outgoing), rank):
        if len(own_pieces) == 1 and not step.back:
            return cut_out(step, rank, own_pieces[0], dtype)
        return lambda array: assemble_windows(step, shape, dtype, [(array, pieces) for _, pieces in incoming])
    if step.back:
        return _derive_halo_reduction(step, rank, group, dtype)
    return _derive_windows(step, rank, group, dtype)


def _derive_halo_reduction(step: HaloStep, rank: int, group: Members, dtype: np.dtype) -> Run:
    """Return the function that runs a reverse halo exchange.

    It adds what other ranks send to the block.

    Args:
        step: the step; ``step.back`` is True.
        rank: this rank.
        group: the ranks of the group and their communicator.
        dtype: the element type.
    """
    shape, incoming = step.dst.local_shape(step.shape, rank), halo.received_boxes(step, rank)
    halo_messages = _HaloMessages.of(step, rank, group, dtype, needs_buffer=True, room=None)

    def run(array: np.ndarray) -> np.ndarray:
        """Exchange the elements and add them to the block."""
        requests, landed = halo_messages.start(array, None)
        MPI.Request.Waitall(requests)
        return assemble_windows(step, shape, dtype, _list_contributions(incoming, rank, array, landed))

    return run


def _derive_windows(step: HaloStep, rank: int, group: Members, dtype: np.dtype) -> Run:
    """Return the function that runs a halo exchange: it returns the windows of this rank.

    The windows are the rank's block and the elements of other ranks around it that its local function reads. The
    function takes the block, and receives the other elements. The windows are

    - a view of the step's padded buffer if it has one (:class:`RoomMemory`);
    - else, if windows read positions outside of the tensor, a new array with room for these positions around it
      (:func:`allocate_with_margins`);
    - else, if elements arrive, a new array;
    - else a view of the block if they have at least half of its elements, or a new array (:func:`assemble_windows`).

    Args:
        step: the step; ``step.back`` is False.
        rank: this rank.
        group: the ranks of the group and their communicator.
        dtype: the element type.
    """
    shape = step.dst.local_shape(step.shape, rank)
    own_pieces = [
        piece for peer, pieces in halo.received_boxes(step, rank) if peer == rank for piece in pieces
    ]
    room, margins = halo.padded_buffer(step, rank), halo.window_padding(step, rank)
    needs_buffer = room is not None or bool(margins)
    halo_messages = _HaloMessages.of(step, rank, group, dtype, needs_buffer, room)
    fresh: Callable[[], np.ndarray] | None = None
    if margins:
        fresh = partial(allocate_with_margins, shape, margins, dtype)
    elif not needs_buffer and halo_messages.arriving:  # own elements alone may stay where they are
        fresh = allocator(shape, dtype)

    def run(array: np.ndarray) -> np.ndarray:
        """Exchange the elements and assemble the windows."""
        out = None if fresh is None else fresh()
        requests, landed = halo_messages.start(array, out)
        memory = None if room is None else RoomMemory.of(array, room)
        if out is not None:  # while the messages are under way
            for piece in own_pieces:
                out[piece.target] = array[piece.source]
        MPI.Request.Waitall(requests)
        arrived = [box for peer, buffer in landed for box in _parts(peer, buffer)]
        if memory is not None:
            if not memory.takes(arrived):
                memory = RoomMemory.copied(array, memory.room)
            return memory.filled(arrived)
        if out is None:
            return assemble_windows(step, shape, dtype, [(array, own_pieces)])
        for target, box in arrived:
            out[target] = box
        return out

    return run


class _HaloMessages(NamedTuple):
    """Messages of this rank in a halo exchange.

    Attributes:
        comm: the communicator of the group.
        dtype: the element type.
        arriving: the messages from other ranks.
        leaving: the number of each receiver in the communicator, and the boxes that it gets.
    """

    comm: Counted
    dtype: np.dtype
    arriving: Sequence[Arriving]
    leaving: Sequence[tuple[int, Sequence[HaloPiece]]]

    @classmethod
    def of(
        cls,
        step: HaloStep,
        rank: int,
        group: Members,
        dtype: np.dtype,
        needs_buffer: bool,
        room: Room | None,
    ) -> _HaloMessages:
        """Return the messages that this rank receives and sends in a halo exchange.

        There is one message from each rank that owns elements of the windows, and one to each rank that reads elements
        of this one's. Nothing is sent here.

        Args:
            step: the halo exchange, or its reverse.
            rank: this rank.
            group: the ranks of the group and their communicator.
            dtype: the element type.
            needs_buffer: True if no message may be received in the windows directly.
            room: the positions of block and windows in the padded buffer; None if the step has no such buffer.
        """
        ranks, comm = group
        number = {member: k for k, member in enumerate(ranks)}
        shape = step.dst.local_shape(step.shape, rank)
        arriving = [
            _describe_message(shape, number[peer], pieces, needs_buffer, room)
            for peer, pieces in halo.received_boxes(step, rank)
            if peer != rank
        ]
        outgoing = halo.sent_boxes(step, rank)
        leaving = [(number[peer], pieces) for peer, pieces in outgoing if peer != rank]
        return cls(comm, dtype, arriving, leaving)

    def start(
        self, array: np.ndarray, out: np.ndarray | None
    ) -> tuple[list[MPI.Request], list[tuple[Arriving, np.ndarray]]]:
        """Start to receive and to send all messages of the exchange; wait for nothing.

        Args:
            array: this rank's array, whose boxes are sent.
            out: the windows. A message whose elements are contiguous in them is received there. None: each message is
                received in a buffer of its own.

        Returns:
            ``(requests, landed)``.
            ``requests``: one or more per message, to wait for.
            ``landed``: ``(message, buffer)`` for each message that is received in a buffer; its boxes are still to be
            copied.
        """
        kind = element(self.dtype.itemsize)
        requests: list[MPI.Request] = []
        landed: list[tuple[Arriving, np.ndarray]] = []
        for peer in self.arriving:
            if out is None or peer.offset is None:
                landing = take_buffer((peer.size,), self.dtype)
                landed.append((peer, landing))
            else:
                landing = out.reshape(-1)[peer.offset : peer.offset + peer.size]
            requests += [self.comm.Irecv([chunk, kind], peer.number) for chunk in counted_parts(landing)]
        for receiver, pieces in self.leaving:
            packed = _pack_boxes(array, pieces)
            requests += [self.comm.Isend([chunk, kind], receiver) for chunk in counted_parts(packed)]
        return requests, landed


def _describe_message(
    shape: tuple[int, ...], number: int, pieces: Sequence[HaloPiece], needs_buffer: bool, room: Room | None
) -> Arriving:
    """Return the plan for receiving a message from another rank.

    The plan has the number of the sender, the number of elements, an offset, and for each box its part of the message,
    its shape and its index in the windows. The boxes lie in the message one after the other. If the message is one box
    that is contiguous in the windows, the offset is its position in the flat windows, so that it can be received there
    directly. Otherwise, or if ``needs_buffer``, the offset is None. With ``room``, indices are those in the padded
    buffer instead of the windows.

    Args:
        shape: the shape of the windows.
        number: the number of the sender in the communicator.
        pieces: the boxes.
        needs_buffer: True if the elements cannot be received in the windows directly.
        room: the positions in the padded buffer if the windows are a part of it; else None.
    """
    parts, start = [], 0
    for piece in pieces:
        sizes = [len(range(*slice_.indices(n))) for slice_, n in zip(piece.target, shape)]
        target = piece.target
        if room is not None:  # from an index in the windows to one in the padded buffer
            target = tuple(
                slice(span.start + window.start, span.stop + window.start)
                for span, window in zip(target, room.windows)
            )
        parts.append((slice(start, start + piece.size), sizes, target))
        start += piece.size
    offset = None if needs_buffer or len(pieces) != 1 else flat_offset(shape, pieces[0].target)
    return Arriving(number, start, offset, tuple(parts))


def _parts(peer: Arriving, buffer: np.ndarray) -> Come:
    """Return the boxes received from a rank, each with its index."""
    return [(target, buffer[elements_slice].reshape(sizes)) for elements_slice, sizes, target in peer.parts]


def _list_contributions(
    incoming: Sequence[tuple[int, Sequence[HaloPiece]]],
    rank: int,
    array: np.ndarray,
    landed: Sequence[tuple[Arriving, np.ndarray]],
) -> list[tuple[np.ndarray, Sequence[HaloPiece]]]:
    """Return ``(array, boxes)`` of each rank that contributes to this rank's block.

    The ranks are in the order of the group; this rank's own array is among them. A received box comes as an array of
    its own.

    Args:
        incoming: the ranks of the group with their boxes.
        rank: this rank.
        array: this rank's own array.
        landed: the received messages with their elements, in the order of the group.
    """
    contributions: list[tuple[np.ndarray, Sequence[HaloPiece]]] = []
    others = iter(landed)
    for peer, pieces in incoming:
        if peer == rank:
            contributions.append((array, pieces))
            continue
        for target, box in _parts(*next(others)):
            full_index = (slice(None),) * box.ndim
            contributions.append((box, [HaloPiece(full_index, target, box.size)]))
    return contributions


def _pack_boxes(array: np.ndarray, pieces: Sequence[HaloPiece]) -> np.ndarray:
    """Return the boxes one after the other; a single box without a copy if it is contiguous."""
    if len(pieces) == 1:
        return contiguous(array[pieces[0].source])
    return np.concatenate([array[piece.source].reshape(-1) for piece in pieces])
