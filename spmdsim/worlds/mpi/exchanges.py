"""Steps as one or a few exchanges: by element numbers, of sums, of prefixes, of parts of any length, and of windows.

Windows of a split dim take one message from each neighbour that holds something, and one to each that reads.
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
from spmdsim.redistribution.exchange.direct_reduction import Part, reduction_parts, rounds
from spmdsim.redistribution.exchange.flat import flat_receives, flat_sends
from spmdsim.redistribution.implementations.implementation import Implementation
from spmdsim.redistribution.implementations.rank_transfers import flat_offset
from spmdsim.redistribution.steps import halo
from spmdsim.redistribution.steps.group_steps import Parts, ScanStep, one_array
from spmdsim.redistribution.steps.halo import HaloPiece, HaloStep, Room
from spmdsim.worlds.local_steps import Arrived, add_on, add_up, assembled, cut_out
from spmdsim.worlds.mpi import messages
from spmdsim.worlds.mpi.counted import Counted
from spmdsim.worlds.mpi.messages import Stretches, counted_parts, element, native_op, number_view
from spmdsim.worlds.mpi.reducing import ReduceGroup
from spmdsim.worlds.pool import Surroundings, allocator, empty, in_margins, surroundings
from spmdsim.worlds.programs import Run

#: An array per part, by its number.
Arrays = dict[int, np.ndarray]


def exchange_numbered(step: Step, rank: int, comm: Counted, members: Sequence[int], dtype: np.dtype) -> Run:
    """Run this rank's part of an exchange by row-major element numbers that changes the shape."""
    exchange = (step.src, step.dst, step.shape, step.shape_after, rank)
    received = flat_receives(*exchange)
    own = next(((one.source, one.target) for one in received if one.peer == rank), None)
    sent, outgoing = _side(dict(flat_sends(*exchange)), members, rank)
    taken, incoming = _side({one.peer: one.target for one in received}, members, rank)
    shape, kind = step.dst.local_shape(step.shape_after, rank), element(dtype.itemsize)

    def run(array: np.ndarray) -> np.ndarray:
        flat, out, landing = array.reshape(-1), empty(shape, dtype), empty((len(incoming),), dtype)
        packed = flat[outgoing]
        comm.Alltoallv([packed, sent, kind], [landing, taken, kind])
        target = out.reshape(-1)
        target[incoming] = landing
        if own is not None:
            target[own[1]] = flat[own[0]]
        return out

    return run


def _side(numbers: Arrays, members: Sequence[int], rank: int) -> tuple[Stretches, np.ndarray]:
    """Return what goes to, or comes from, each other member: the counts, and all element numbers in order."""
    nothing = np.zeros(0, np.int64)
    lists = [nothing if member == rank else numbers.get(member, nothing) for member in members]
    return Stretches.of(list(map(len, lists))), np.concatenate(lists)


# -- the direct reduction: exchanges of packed boxes, a few, and additions between them ------------------


class _Round:
    """One round's messages of a rank: which parts go to and come from each of the members, one after the other."""

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
        """Send what the parts are, and return what came: from whom, of which part."""
        if self.silent:
            return []
        packed, landing = empty((sum(self.sent[0]),), dtype), empty((sum(self.received[0]),), dtype)
        start = 0
        for k in self.gives:
            piece = values[k]
            packed[start : start + piece.size].reshape(piece.shape)[...] = piece
            start += piece.size
        kind = element(dtype.itemsize)
        comm.Alltoallv([packed, self.sent, kind], [landing, self.received, kind])
        came, start = [], 0
        for member, k in self.takes:
            stop = start + prod(self.shapes[k])
            came.append((member, k, landing[start:stop].reshape(self.shapes[k])))
            start = stop
        return came


def sum_directly(step: Step, rank: int, comm: Counted, members: Sequence[int], dtype: np.dtype) -> Run:
    """Run this rank's part of a direct reduction over a communicator of the given world ranks."""
    op, shares = check_reduce(step.op, dtype), reduction_parts(step.src, step.dst, step.shape)
    contributions, *passed, results = [_Round(shares, hops, members, rank) for hops in rounds(shares)]
    have = _indices(shares, step.src.bounds(step.shape, rank)) if rank in step.src.mesh else {}
    want = _indices(shares, step.dst.bounds(step.shape, rank)) if rank in step.dst.mesh else {}
    target = step.dst.local_shape(step.shape, rank) if rank in step.dst.mesh else (0,) * len(step.shape)
    mine = {k: ranks for k, part in enumerate(shares) for adder, ranks in part.adders if adder == rank}

    def first_sums(own: Arrays) -> Arrays:
        came = {(k, member): piece for member, k, piece in contributions.run(comm, own, dtype)}
        terms = {k: [own[k] if one == rank else came[k, one] for one in ranks] for k, ranks in mine.items()}
        return {k: add_up(op, some, len(shares[k].adders) == 1) for k, some in terms.items()}

    def run(array: np.ndarray) -> np.ndarray:
        total = first_sums({k: array[index] for k, index in have.items()})
        for some in passed:
            for _, k, piece in some.run(comm, total, dtype):
                total[k] = add_on(op, piece, total[k], shares[k].terms if shares[k].last == rank else None)
        came = results.run(comm, total, dtype)
        out = empty(target, dtype)  # not before what was packed is gone
        for _, k, piece in came:
            out[want[k]] = piece
        for k in mine:
            if shares[k].last == rank and rank in shares[k].wanting:
                out[want[k]] = total[k]
        return out

    return run


def _indices(shares: Sequence[Part], mine: Bounds) -> dict[int, tuple[slice, ...]]:
    """Return the places of the parts that a box contains."""
    return {
        k: within(part.box, mine)
        for k, part in enumerate(shares)
        if all(a <= start and stop <= b for (start, stop), (a, b) in zip(part.box, mine))
    }


# -- in the middle of local functions ----------------------------------------------------------------------


def scan(step: ScanStep, group: ReduceGroup, dtype: np.dtype, implementation: Implementation) -> Run:
    """Run an exclusive scan of a rank's array."""
    op = check_reduce(step.op, dtype)
    order = group.order[::-1] if step.backward else group.order
    me, first, native = order.index(group.me), identity(op, dtype), native_op(op, dtype)
    if implementation.name == "identity":
        return lambda array: np.full(array.shape, first)

    def gathered(array: np.ndarray) -> np.ndarray:
        rows, kind = np.empty((len(order), *array.shape), dtype), element(dtype.itemsize)
        group.comm.Allgather([array, array.size, kind], [rows, array.size, kind])
        out = np.full(array.shape, first)
        for place, k in enumerate(order[:me]):  # as ``scanned`` does it
            if place:
                fold(op, [out, rows[k]], out=out)
            else:
                out[...] = rows[k]
        return out

    if native is None or implementation.name != "scan":
        return gathered

    def exclusive(array: np.ndarray) -> np.ndarray:
        out = np.full(array.shape, first)
        group.comm.Exscan(number_view(array), number_view(out), native)
        if me == 0:  # where MPI leaves open what it does with it
            out.fill(first)
        return out

    return exclusive


def send_parts(comm: Counted, order: Sequence[int], rank: int, dtype: np.dtype, outgoing: Parts) -> Arrived:
    """Send a part to each member in one Alltoallv. The own part of a rank is copied."""
    places, me = [order.index(member) for member in sorted(order)], order.index(rank)
    parts, counts = [outgoing.arrays[k] for k in places], [int(outgoing.counts[k]) for k in places]
    if max(sum(map(len, parts)), sum(counts)) > messages.MAX_COUNT:
        raise WorldError(f"rank {rank} would exchange more elements than MPI can count in one call")
    packed, landed, kind = one_array(parts), empty((sum(counts),), dtype), element(dtype.itemsize)
    here = places.index(me)
    sent, taken = Stretches.of(list(map(len, parts))), Stretches.of(counts)
    if len(order) > 1:
        comm.Alltoallv([packed, sent.without(here), kind], [landed, taken.without(here), kind])
    blocks = [outgoing.arrays[me]] * len(order)
    for k, start, count in zip(places, taken.starts, counts):
        blocks[k] = landed[start : start + count]
    blocks[me][...] = outgoing.arrays[me]  # so that all that came lies in one stretch
    peers = tuple((order[k], count) for k, count in sorted(zip(places, counts)) if count and k != me)
    return [blocks], [peers]


#: The ranks of a group, sorted, and their communicator.
Members = tuple[tuple[int, ...], Counted]
#: What neighbours sent, and where it goes.
Come = list[tuple[Index, np.ndarray]]
#: The room around a block is filled in so many parts at most.
FILLED = 64


class RoomMemory(NamedTuple):
    """A buffer with a block and, around it, the elements received from neighbours."""

    here: Surroundings
    whole: np.ndarray
    room: Room

    @classmethod
    def of(cls, block: np.ndarray, room: Room) -> RoomMemory:
        """Return the padded buffer in which the block is, or a copy of the block."""
        here = surroundings(block)
        if (
            here is None
            or here.block() is not block
            or here.shape != room.shape
            or len(here.filled) >= FILLED
        ):
            return cls.copied(block, room)
        return cls(here, np.ndarray(room.shape, block.dtype, block.base), room)

    @classmethod
    def copied(cls, block: np.ndarray, room: Room) -> RoomMemory:
        """Return a copy of the block with padding."""
        here = Surroundings(room.shape, block.dtype)
        whole: np.ndarray = np.ndarray(room.shape, block.dtype, np.asarray(here))
        whole[room.block] = block
        return cls(here, whole, room)

    def takes(self, come: Come) -> bool:
        """Return True if received elements equal those in the padding, because other tensors may share a block."""
        return all(_agree(self.whole, old, *one) for old in self.here.filled for one in come)

    def filled(self, come: Come) -> np.ndarray:
        """Return the windows, after copying the received elements into the padding."""
        for index, part in come:
            if index not in self.here.filled:
                self.whole[index] = part
                self.here.filled.append(index)
        return self.whole[self.room.windows]


def settled(block: np.ndarray, windows: np.ndarray, room: Room) -> np.ndarray:
    """Return the copy of a block beside its windows if there is one, so that later slices need no other copy.

    In ``u[:-2] + u[2:]`` both are views of the memory in which ``u`` has its block, beside which lands what comes.
    """
    here = surroundings(windows)
    if here is None or here.block() is block:
        return block
    moved: np.ndarray = np.ndarray(here.shape, block.dtype, windows.base)[room.block]
    if not moved.flags.c_contiguous:
        return block
    here.block = ref(moved)
    return moved


def _agree(whole: np.ndarray, before: Index, index: Index, part: np.ndarray) -> bool:
    """Return True if received elements equal those in the buffer, because other tensors may share a block."""
    common = [slice(max(a.start, b.start), min(a.stop, b.stop)) for a, b in zip(before, index)]
    if any(one.start >= one.stop for one in common):
        return True
    again = part[tuple(slice(a.start - b.start, a.stop - b.start) for a, b in zip(common, index))]
    return bool(again.tobytes() == whole[tuple(common)].tobytes())


class Arriving(NamedTuple):
    """What comes from another rank of the group, and how many elements: the rank's number in the group's communicator.

    They begin at the ``messages`` in the windows, if they are contiguous there and may land there at once; else the parts of
    what lands are: which elements, in which shape, and where they go.
    """

    number: int
    size: int
    place: int | None
    parts: tuple[tuple[slice, Sequence[int], Index], ...]


def exchange_halo(step: HaloStep, rank: int, group: Members | None, dtype: np.dtype) -> Run:
    """Run this rank's part of a halo exchange; without a group, nothing is sent."""
    shape, kind = step.dst.local_shape(step.shape, rank), element(dtype.itemsize)
    incoming, outgoing = halo.received_boxes(step, rank), halo.sent_boxes(step, rank)
    own = [piece for peer, pieces in incoming if peer == rank for piece in pieces]
    if group is None or not halo.moved_elements((*incoming, *outgoing), rank):
        if len(own) == 1 and not step.back:
            return cut_out(step, rank, own[0], dtype)
        return lambda array: assembled(step, shape, dtype, [(array, pieces) for _, pieces in incoming])
    ranks, comm = group
    room, margins = halo.padded_buffer(step, rank), halo.margins_around(step, rank)
    number = {member: k for k, member in enumerate(ranks)}
    apart = step.back or room is not None or bool(margins)
    arriving = [
        _arriving(shape, number[peer], pieces, apart, room) for peer, pieces in incoming if peer != rank
    ]
    leaving = [(number[peer], pieces) for peer, pieces in outgoing if peer != rank]
    fresh: Callable[[], np.ndarray] | None = None
    if margins:
        fresh = partial(in_margins, shape, margins, dtype)
    elif not apart and arriving:  # own elements alone may stay where they are
        fresh = allocator(shape, dtype)

    def run(array: np.ndarray) -> np.ndarray:
        out = None if fresh is None else fresh()
        requests, landed = [], []
        for peer in arriving:
            if out is None or peer.place is None:
                landing = empty((peer.size,), dtype)
                landed.append((peer, landing))
            else:
                landing = out.reshape(-1)[peer.place : peer.place + peer.size]
            requests += [comm.Irecv([part, kind], peer.number) for part in counted_parts(landing)]
        for member, pieces in leaving:
            packed = _packed(array, pieces)
            requests += [comm.Isend([part, kind], member) for part in counted_parts(packed)]
        if step.back:
            MPI.Request.Waitall(requests)
            return assembled(step, shape, dtype, _in_order(incoming, rank, array, landed))
        memory = None if room is None else RoomMemory.of(array, room)
        if out is not None:  # while the messages are under way
            for piece in own:
                out[piece.target] = array[piece.source]
        MPI.Request.Waitall(requests)
        come = [(target, part) for peer, buffer in landed for target, part in _parts(peer, buffer)]
        if memory is not None:
            return (memory if memory.takes(come) else RoomMemory.copied(array, memory.room)).filled(come)
        if out is None:
            return assembled(step, shape, dtype, [(array, own)])
        for target, part in come:
            out[target] = part
        return out

    return run


def _arriving(
    shape: tuple[int, ...], number: int, pieces: Sequence[HaloPiece], apart: bool, room: Room | None
) -> Arriving:
    """Pieces that come one after the other."""
    parts, start = [], 0
    for piece in pieces:
        sizes = [len(range(*part.indices(n))) for part, n in zip(piece.target, shape)]
        target = piece.target
        if room is not None:  # where they lie in the memory
            target = tuple(slice(a.start + b.start, a.stop + b.start) for a, b in zip(target, room.windows))
        parts.append((slice(start, start + piece.size), sizes, target))
        start += piece.size
    there = None if apart or len(pieces) != 1 else flat_offset(shape, pieces[0].target)
    return Arriving(number, start, there, tuple(parts))


def _parts(peer: Arriving, buffer: np.ndarray) -> Come:
    """Return the parts received from a rank, each with its place."""
    return [(target, buffer[part].reshape(sizes)) for part, sizes, target in peer.parts]


def _in_order(
    incoming: Sequence[tuple[int, Sequence[HaloPiece]]],
    rank: int,
    array: np.ndarray,
    landed: Sequence[tuple[Arriving, np.ndarray]],
) -> list[tuple[np.ndarray, Sequence[HaloPiece]]]:
    """Return the contributions of all ranks, this rank's included, in the order of the group."""
    contributions: list[tuple[np.ndarray, Sequence[HaloPiece]]] = []
    others = iter(landed)
    for peer, pieces in incoming:
        if peer == rank:
            contributions.append((array, pieces))
            continue
        for target, part in _parts(*next(others)):
            whole = (slice(None),) * part.ndim
            contributions.append((part, [HaloPiece(whole, target, part.size)]))
    return contributions


def _packed(array: np.ndarray, pieces: Sequence[HaloPiece]) -> np.ndarray:
    """Pieces one after the other; a contiguous one as it is."""
    if len(pieces) == 1:
        return contiguous(array[pieces[0].source])
    return np.concatenate([array[piece.source].reshape(-1) for piece in pieces])
