"""Steps that place boxes (all_gather, all_to_all, exchange) as one MPI call, derived once per step and rank.

Ways, chosen by facts that all members of the group know: ``Allgather(v)`` straight into the result where the
pieces are contiguous there; ``Alltoallw`` with subarray types; packing and ``Alltoallv``; and messages to the
actual peers, in pieces that MPI can count, where a group is large or its data are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from mpi4py import MPI

from spmdsim.errors import PlanError
from spmdsim.layout import Bounds
from spmdsim.redistribution.step import Step, overlap
from spmdsim.worlds import mpi_types
from spmdsim.worlds.local_steps import Index, contiguous, within
from spmdsim.worlds.mpi_messages import _parts
from spmdsim.worlds.mpi_types import element, flat_offset, subarray, words
from spmdsim.worlds.pool import empty
from spmdsim.worlds.tuning import Tuning

#: Groups larger than this exchange by messages to the actual peers only.
FEW_RANKS = 32

Run = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Piece:
    """A box that goes to or comes from a member: its number in the communicator, and where it is locally."""

    member: int
    index: Index

    @property
    def count(self) -> int:
        """Elements of the box."""
        return math.prod(part.stop - part.start for part in self.index)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the box."""
        return tuple(part.stop - part.start for part in self.index)


@dataclass(frozen=True)
class Traffic:
    """All that one rank sends and receives in a step.

    Args:
        members: the world ranks of the communicator, sorted.
        me: this rank's number among them.
        source: shape of this rank's shard before.
        target: shape of its shard after.
        sends: boxes of the source that go to others.
        receives: boxes of the target that come from others.
        own: the box that stays, in the source and in the target, or None.
        gathered: per member the box it contributes to the common target of an all_gather, or None.
        largest: the largest number of elements that any member holds before or after.
    """

    members: tuple[int, ...]
    me: int
    source: tuple[int, ...]
    target: tuple[int, ...]
    sends: tuple[Piece, ...]
    receives: tuple[Piece, ...]
    own: tuple[Index, Index] | None
    gathered: tuple[Index | None, ...] | None
    largest: int


def _shape(box: Bounds) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in box)


def group_traffic(step: Step, rank: int) -> Traffic:
    """The traffic of a placing step inside a group of the mesh.

    Raises:
        PlanError: the group does not hold the whole target box.
    """
    members = tuple(sorted(step.group(rank)))
    before = [step.src.bounds(step.shape, m) for m in members]
    after = [step.dst.bounds(step.shape, m) for m in members]
    me = members.index(rank)
    sends, receives, own, seen, got = [], [], None, set(), 0
    # Members with equal boxes are replicas: the own copy serves this rank, else the first one.
    for k in sorted(range(len(members)), key=lambda k: k != me):
        box = overlap(before[k], after[me])
        if box is None or before[k] in seen:
            continue
        seen.add(before[k])
        got += math.prod(_shape(box))
        if k == me:
            own = (within(box, before[me]), within(box, after[me]))
        else:
            receives.append(Piece(k, within(box, after[me])))
    if got != math.prod(_shape(after[me])):
        raise PlanError(
            f"{step.collective} over {step.axes} cannot take {step.src} to {step.dst}: "
            f"the group does not hold the box {after[me]}"
        )
    first = {box: k for k, box in reversed(list(enumerate(before)))}
    for k in range(len(members)):
        box = overlap(before[me], after[k])
        if k != me and box is not None and before[k] != before[me] and first[before[me]] == me:
            sends.append(Piece(k, within(box, before[me])))
    gathered = None
    if len(set(after)) == 1 and len(first) == len(members):
        gathered = tuple(within(b, after[0]) if math.prod(_shape(b)) else None for b in before)
    largest = max(math.prod(_shape(box)) for box in (*before, *after))
    return Traffic(
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


def exchange_traffic(step: Step, rank: int) -> Traffic:
    """The traffic of a direct exchange between two layouts, over the ranks of both meshes."""
    from spmdsim.redistribution.exchange import receives, sends

    members = tuple(sorted({*step.src.mesh.rank_list, *step.dst.mesh.rank_list}))
    number = {member: k for k, member in enumerate(members)}
    source, target = step.src.bounds(step.shape, rank), step.dst.bounds(step.shape, rank)
    got = receives(step.src, step.dst, step.shape, rank)
    given = sends(step.src, step.dst, step.shape, rank)
    own = next(((within(t.box, source), within(t.box, target)) for t in got if t.peer == rank), None)
    return Traffic(
        members,
        number[rank],
        _shape(source),
        _shape(target),
        tuple(Piece(number[t.peer], within(t.box, source)) for t in given if t.peer != rank),
        tuple(Piece(number[t.peer], within(t.box, target)) for t in got if t.peer != rank),
        own,
        None,
        math.prod(step.shape),
    )


# -- ways ---------------------------------------------------------------------------------------------


def place(
    traffic: Traffic, comm: MPI.Comm, dtype: np.dtype, tuning: Tuning
) -> tuple[Run, list[MPI.Datatype]]:
    """The fastest way for this traffic, and the MPI types to free when it is forgotten."""
    if traffic.largest > mpi_types.MAX_COUNT or (traffic.gathered is None and comm.size > FEW_RANKS):
        return _messages(traffic, comm, dtype), []
    if traffic.gathered is not None:
        offsets = [None if i is None else flat_offset(traffic.target, i) for i in traffic.gathered]
        if all(o is not None or i is None for o, i in zip(offsets, traffic.gathered)):
            return _gather(traffic, comm, [o or 0 for o in offsets]), []
        if not tuning.gather_types:
            return _gather_unpack(traffic, comm, dtype), []
    if tuning.types:
        return _typed(traffic, comm, dtype)
    return _packed(traffic, comm, dtype), []


def _counts(indices: tuple[Index | None, ...]) -> list[int]:
    return [0 if i is None else Piece(0, i).count for i in indices]


def _gather(traffic: Traffic, comm: MPI.Comm, offsets: list[int]) -> Run:
    """Allgather(v) straight into the result."""
    assert traffic.gathered is not None
    counts, target = _counts(traffic.gathered), traffic.target
    equal = len(set(counts)) == 1 and offsets == [k * counts[0] for k in range(len(counts))]
    layout = (counts, offsets)

    def run(array: np.ndarray) -> np.ndarray:
        out = empty(target, array.dtype)
        _, kind = element(array.dtype.itemsize)
        if equal:
            comm.Allgather([words(array), counts[0], kind], [words(out), counts[0], kind])
        else:
            comm.Allgatherv([words(array), array.size, kind], [words(out), layout, kind])
        return out

    return run


def _gather_unpack(traffic: Traffic, comm: MPI.Comm, dtype: np.dtype) -> Run:
    """Allgather(v) into a buffer, and every piece from there to its place."""
    assert traffic.gathered is not None
    counts, target = _counts(traffic.gathered), traffic.target
    offsets = [sum(counts[:k]) for k in range(len(counts))]
    jobs = [
        (offset, count, Piece(0, index).shape, index)
        for offset, count, index in zip(offsets, counts, traffic.gathered)
        if index is not None
    ]
    kind, layout, total = element(dtype.itemsize)[1], (counts, offsets), sum(counts)

    def run(array: np.ndarray) -> np.ndarray:
        out, parts = empty(target, dtype), empty((total,), dtype)
        comm.Allgatherv([words(array), array.size, kind], [words(parts), layout, kind])
        for offset, count, shape, index in jobs:
            out[index] = parts[offset : offset + count].reshape(shape)
        return out

    return run


def _typed(traffic: Traffic, comm: MPI.Comm, dtype: np.dtype) -> tuple[Run, list[MPI.Datatype]]:
    """Alltoallw: MPI reads and writes the boxes where they are."""
    size, kind = comm.size, element(dtype.itemsize)[1]
    made: list[MPI.Datatype] = []

    def side(
        pieces: tuple[Piece, ...], shape: tuple[int, ...]
    ) -> tuple[list[int], list[int], list[MPI.Datatype]]:
        counts, displacements, types = [0] * size, [0] * size, [kind] * size
        for piece in pieces:
            offset = flat_offset(shape, piece.index)
            if offset is not None and offset * dtype.itemsize <= mpi_types.MAX_COUNT:
                counts[piece.member] = piece.count
                displacements[piece.member] = offset * dtype.itemsize
            else:
                counts[piece.member] = 1
                types[piece.member] = subarray(shape, piece.index, dtype.itemsize)
                made.append(types[piece.member])
        return counts, displacements, types

    sent, received = side(traffic.sends, traffic.source), side(traffic.receives, traffic.target)
    own, target = traffic.own, traffic.target

    def run(array: np.ndarray) -> np.ndarray:
        out = empty(target, dtype)
        comm.Alltoallw([words(array), *sent], [words(out), *received])
        if own is not None:
            out[own[1]] = array[own[0]]
        return out

    return run, made


@dataclass(frozen=True)
class _Side:
    """One side of a packed exchange: where each member's piece is in the flat buffer."""

    pieces: tuple[Piece, ...]
    counts: list[int]
    offsets: list[int]
    total: int
    direct: bool


def _side(pieces: tuple[Piece, ...], shape: tuple[int, ...], size: int) -> _Side:
    counts, offsets, packed = [0] * size, [0] * size, 0
    found = [flat_offset(shape, piece.index) for piece in pieces]
    direct = None not in found
    for piece, offset in zip(pieces, found):
        counts[piece.member] = piece.count
        offsets[piece.member] = offset if direct and offset is not None else packed
        packed += piece.count
    return _Side(pieces, counts, offsets, packed, direct)


def _pack(side: _Side, array: np.ndarray) -> np.ndarray:
    """The pieces one after the other, or the array itself if they are contiguous in it."""
    if side.direct:
        return array
    buffer = empty((side.total,), array.dtype)
    for piece in side.pieces:
        offset = side.offsets[piece.member]
        buffer[offset : offset + piece.count].reshape(piece.shape)[...] = array[piece.index]
    return buffer


def _unpack(side: _Side, buffer: np.ndarray, out: np.ndarray) -> None:
    if side.direct:
        return
    for piece in side.pieces:
        offset = side.offsets[piece.member]
        out[piece.index] = buffer[offset : offset + piece.count].reshape(piece.shape)


def _packed(traffic: Traffic, comm: MPI.Comm, dtype: np.dtype) -> Run:
    """Pack, Alltoallv, unpack; a side whose pieces are contiguous is used in place."""
    sent = _side(traffic.sends, traffic.source, comm.size)
    received = _side(traffic.receives, traffic.target, comm.size)
    kind, own, target = element(dtype.itemsize)[1], traffic.own, traffic.target
    sent_layout, received_layout = (sent.counts, sent.offsets), (received.counts, received.offsets)

    def run(array: np.ndarray) -> np.ndarray:
        out = empty(target, dtype)
        landing = out if received.direct else empty((received.total,), dtype)
        outgoing = _pack(sent, array)
        comm.Alltoallv([words(outgoing), sent_layout, kind], [words(landing), received_layout, kind])
        if own is not None:
            out[own[1]] = array[own[0]]
        _unpack(received, landing, out)
        return out

    return run


def _messages(traffic: Traffic, comm: MPI.Comm, dtype: np.dtype) -> Run:
    """Messages between actual peers, in pieces that MPI can count."""
    kind, own, target = element(dtype.itemsize)[1], traffic.own, traffic.target

    def run(array: np.ndarray) -> np.ndarray:
        out, requests, landings = empty(target, dtype), [], []
        for piece in traffic.receives:
            offset = flat_offset(target, piece.index)
            if offset is None:
                landing = empty((piece.count,), dtype)
                landings.append((piece, landing))
            else:
                landing = out.reshape(-1)[offset : offset + piece.count]
            requests += [comm.Irecv([part, kind], piece.member) for part in _parts(landing)]
        for piece in traffic.sends:
            box = contiguous(array[piece.index])
            requests += [comm.Isend([part, kind], piece.member) for part in _parts(box)]
        if own is not None:
            out[own[1]] = array[own[0]]
        MPI.Request.Waitall(requests)
        for piece, landing in landings:
            out[piece.index] = landing.reshape(piece.shape)
        return out

    return run
