"""Windows of a split dim on MPI: one message from each neighbour that holds something, and one to each that reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from weakref import ref

import numpy as np
from mpi4py import MPI

from spmdsim.core.lockstep import contiguous
from spmdsim.core.step import Index
from spmdsim.redistribution.halo import (
    HaloPiece,
    HaloStep,
    Room,
    elements,
    margins_around,
    received,
    room_around,
    sent,
)
from spmdsim.redistribution.ways.rank_transfers import flat_offset
from spmdsim.worlds.local_steps import assembled
from spmdsim.worlds.mpi.counted import Counted
from spmdsim.worlds.mpi.datatypes import counted_parts, element
from spmdsim.worlds.pool import Surroundings, allocator, empty, in_margins, surroundings

#: The ranks of a group, sorted, and their communicator.
Members = tuple[tuple[int, ...], Counted]
#: What neighbours sent, and where it goes.
Come = list[tuple[Index, np.ndarray]]
#: The room around a block is filled in so many parts at most.
FILLED = 64


def _surrounded(block: np.ndarray, room: Room, come: Come) -> np.ndarray:
    """The windows, in memory that has room around the block: its own, or a copy of it."""
    here = surroundings(block)
    if here is not None and here.block() is block and here.shape == room.shape:
        whole = np.ndarray(room.shape, block.dtype, block.base)
        if len(here.filled) < FILLED and all(_agree(whole, old, *one) for old in here.filled for one in come):
            return _filled(whole, here, room, come)
    here = Surroundings(room.shape, block.dtype)
    whole = np.ndarray(room.shape, block.dtype, np.asarray(here))
    whole[room.block] = block
    return _filled(whole, here, room, come)


def _filled(whole: np.ndarray, here: Surroundings, room: Room, come: Come) -> np.ndarray:
    for index, part in come:
        if index not in here.filled:
            whole[index] = part
            here.filled.append(index)
    return whole[room.windows]


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


def exchange_halo(
    step: HaloStep, rank: int, group: Members | None, dtype: np.dtype
) -> Callable[[np.ndarray], np.ndarray]:
    """This rank's part; without a group there is nobody to talk to."""
    shape, kind = step.dst.local_shape(step.shape, rank), element(dtype.itemsize)
    incoming, outgoing = received(step, rank), sent(step, rank)
    if group is None or not elements((*incoming, *outgoing), rank):
        return lambda array: assembled(step, shape, dtype, [(array, pieces) for _, pieces in incoming])
    ranks, comm = group
    room = room_around(step, rank)
    number = {member: k for k, member in enumerate(ranks)}
    margins = () if room is not None else margins_around(step, rank)
    apart = step.back or room is not None or bool(margins)
    fresh: Callable[[], np.ndarray] | None = None
    if margins:
        fresh = partial(in_margins, shape, margins, dtype)
    elif not apart and any(peer != rank for peer, _ in incoming):
        fresh = allocator(shape, dtype)
    places = {peer: None if apart else _place(shape, pieces) for peer, pieces in incoming}

    def run(array: np.ndarray) -> np.ndarray:
        out: np.ndarray | None = (
            None if fresh is None else fresh()
        )  # own elements alone may stay where they are
        requests, landed = [], {}
        for peer, pieces in incoming:
            if peer == rank:
                continue
            count, place = sum(piece.size for piece in pieces), places[peer]
            landing = (
                empty((count,), dtype)
                if out is None or place is None
                else out.reshape(-1)[place : place + count]
            )
            landed[peer] = landing
            requests += [comm.Irecv([part, kind], number[peer]) for part in counted_parts(landing)]
        for peer, pieces in outgoing:
            if peer != rank:
                packed = _packed(array, pieces)
                requests += [comm.Isend([part, kind], number[peer]) for part in counted_parts(packed)]
        parts: list[tuple[np.ndarray, Sequence[HaloPiece]]] = []
        for peer, pieces in incoming:
            if peer == rank:
                parts.append((array, pieces))
            elif places[peer] is None:
                parts += _apart(shape, landed[peer], pieces)
        MPI.Request.Waitall(requests)
        if room is not None:
            come = [
                (_moved(p.target, room), part) for part, pieces in parts if part is not array for p in pieces
            ]
            return _surrounded(array, room, come)
        return assembled(step, shape, dtype, parts, out)

    return run


def _moved(target: Index, room: Room) -> Index:
    """Where elements of the windows lie in the memory."""
    return tuple(slice(a.start + b.start, a.stop + b.start) for a, b in zip(target, room.windows))


def _place(shape: tuple[int, ...], pieces: Sequence[HaloPiece]) -> int | None:
    """Where the only piece begins in the flat array, if it is contiguous there."""
    return flat_offset(shape, pieces[0].target) if len(pieces) == 1 else None


def _packed(array: np.ndarray, pieces: Sequence[HaloPiece]) -> np.ndarray:
    """Pieces one after the other; a contiguous one as it is."""
    if len(pieces) == 1:
        return contiguous(array[pieces[0].source])
    return np.concatenate([array[piece.source].reshape(-1) for piece in pieces])


def _apart(
    shape: tuple[int, ...], landed: np.ndarray, pieces: Sequence[HaloPiece]
) -> list[tuple[np.ndarray, Sequence[HaloPiece]]]:
    """What has landed, piece by piece, each with its place."""
    landed_pieces: list[tuple[np.ndarray, Sequence[HaloPiece]]] = []
    start = 0
    for piece in pieces:
        sizes = [len(range(*part.indices(n))) for part, n in zip(piece.target, shape)]
        whole = tuple(slice(None) for _ in sizes)
        landed_pieces.append(
            (landed[start : start + piece.size].reshape(sizes), [HaloPiece(whole, piece.target, piece.size)])
        )
        start += piece.size
    return landed_pieces
