"""Windows of a split dim on MPI: one message from each neighbour that holds something, and one to each that reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple
from weakref import ref

import numpy as np
from mpi4py import MPI

from spmdsim.core.elements import contiguous
from spmdsim.core.step import Index
from spmdsim.redistribution import halo
from spmdsim.redistribution.halo import HaloPiece, HaloStep, Room
from spmdsim.redistribution.ways.rank_transfers import flat_offset
from spmdsim.worlds.local_steps import assembled, cut_out
from spmdsim.worlds.mpi.counted import Counted
from spmdsim.worlds.mpi.messages import counted_parts, element
from spmdsim.worlds.pool import Surroundings, allocator, empty, in_margins, surroundings
from spmdsim.worlds.programs import Run

#: The ranks of a group, sorted, and their communicator.
Members = tuple[tuple[int, ...], Counted]
#: What neighbours sent, and where it goes.
Come = list[tuple[Index, np.ndarray]]
#: The room around a block is filled in so many parts at most.
FILLED = 64


class RoomMemory(NamedTuple):
    """Memory with a room's shape: a block stands in it, and beside the block what comes from neighbours."""

    here: Surroundings
    whole: np.ndarray
    room: Room

    @classmethod
    def of(cls, block: np.ndarray, room: Room) -> RoomMemory:
        """That in which the block lies, if there is such room around it; else a copy of the block."""
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
        """A copy of the block, with room around it."""
        here = Surroundings(room.shape, block.dtype)
        whole: np.ndarray = np.ndarray(room.shape, block.dtype, np.asarray(here))
        whole[room.block] = block
        return cls(here, whole, room)

    def takes(self, come: Come) -> bool:
        """Whether what has come is not otherwise than what was there before: other tensors may share a rank's block."""
        return all(_agree(self.whole, old, *one) for old in self.here.filled for one in come)

    def filled(self, come: Come) -> np.ndarray:
        """The windows, as soon as all has come."""
        for index, part in come:
            if index not in self.here.filled:
                self.whole[index] = part
                self.here.filled.append(index)
        return self.whole[self.room.windows]


def settled(block: np.ndarray, windows: np.ndarray, room: Room) -> np.ndarray:
    """A block where its windows lie, if they lie in a copy of it: the next slices need no other copy then.

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
    """Whether what has come is what was there before, where both lie: other tensors may share a rank's block."""
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
    """This rank's part; without a group there is nobody to talk to."""
    shape, kind = step.dst.local_shape(step.shape, rank), element(dtype.itemsize)
    incoming, outgoing = halo.received(step, rank), halo.sent(step, rank)
    own = [piece for peer, pieces in incoming if peer == rank for piece in pieces]
    if group is None or not halo.elements((*incoming, *outgoing), rank):
        if len(own) == 1 and not step.back:
            return cut_out(step, rank, own[0], dtype)
        return lambda array: assembled(step, shape, dtype, [(array, pieces) for _, pieces in incoming])
    ranks, comm = group
    room, margins = halo.room_around(step, rank), halo.margins_around(step, rank)
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
    """What has come from a rank, part by part, each with its place."""
    return [(target, buffer[part].reshape(sizes)) for part, sizes, target in peer.parts]


def _in_order(
    incoming: Sequence[tuple[int, Sequence[HaloPiece]]],
    rank: int,
    array: np.ndarray,
    landed: Sequence[tuple[Arriving, np.ndarray]],
) -> list[tuple[np.ndarray, Sequence[HaloPiece]]]:
    """The contributions of all ranks, this one's among them, in the group's order: they are added up in it."""
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
