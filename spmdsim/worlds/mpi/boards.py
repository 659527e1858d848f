"""The boards of this process: memory that the ranks of a node share, and copies of what those of other nodes note.

The memory has no name in any folder: nothing is left behind, however a job ends.
"""

from __future__ import annotations

import mmap
import os
import secrets
import tempfile
from collections.abc import Sequence
from contextlib import suppress

from mpi4py import MPI

from spmdsim.errors import WorldError
from spmdsim.worlds.mpi.board import AREA, Board
from spmdsim.worlds.mpi.counted import Counted
from spmdsim.worlds.mpi.courier import Courier, OtherNode
from spmdsim.worlds.mpi.processes import here

#: Where the bytes stand by which ranks know that they opened the same memory.
_WORD = 80
_BYTES = AREA * 8

_boards: list[Board] = []


def known_board(comm: MPI.Comm) -> tuple[Board, list[int]] | None:
    """The board that an earlier world of these ranks uses, and their places there."""
    ranks = world_ranks(comm)
    for board in _boards:
        if {*ranks} <= {*board.members}:
            return board, [board.members.index(rank) for rank in ranks]
    return None


def board_of(comm: Counted) -> tuple[Board, list[int]]:
    """The board of a communicator's ranks, an earlier world's or a new one, and their places there.

    Collective if it is new.

    Raises:
        WorldError: nodes cannot reach each other.
    """
    known = known_board(comm)
    if known is not None:
        return known
    ranks = world_ranks(comm)
    if MPI.UNDEFINED in ranks:  # some were started later
        ranks = list(range(len(ranks)))
    members = sorted(ranks)
    places = [members.index(rank) for rank in ranks]
    board = _new_board(comm, members, places)
    _boards.append(board)
    return board, places


def _new_board(comm: Counted, members: Sequence[int], places: Sequence[int]) -> Board:
    rank = comm.Get_rank()
    nodes = _nodes(comm, places)
    near = next(node for node in nodes if places[rank] in node)
    memory, alone = _shared(comm, places, near)
    if memory is None:  # each of these ranks is a node of its own
        memory, near = mmap.mmap(-1, _BYTES), (places[rank],)
    nodes = [part for node in nodes for part in ([(p,) for p in node] if alone & {*node} else [node])]
    numbers = memoryview(memory).cast("q")
    areas = [
        numbers[near.index(p) * AREA : (near.index(p) + 1) * AREA]
        if p in near
        else memoryview(mmap.mmap(-1, _BYTES)).cast("q")
        for p in range(len(members))
    ]
    if len(nodes) == 1:
        return Board(areas, members, places[rank])
    return _with_courier(comm, areas, members, places, [node for node in nodes if node != near])


def _with_courier(
    comm: Counted,
    areas: Sequence[memoryview],
    members: Sequence[int],
    places: Sequence[int],
    others: Sequence[tuple[int, ...]],
) -> Board:
    rank = comm.Get_rank()
    courier = Courier(secrets.token_bytes(16))
    said = dict(zip(places, comm.allgather(courier.address)))
    courier.follow([OtherNode(node, [said[p] for p in node], rank) for node in others], said[min(said)].word)
    board = Board(areas, members, places[rank], courier)
    courier.serve(board)
    wrong = next(filter(None, comm.allgather(courier.reach(board))), None)
    if wrong is not None:
        raise WorldError(
            f"ranks of different nodes cannot see what each other call: {wrong}; SPMDSIM_CHECK=0 goes without"
        )
    return board


def world_ranks(comm: MPI.Comm) -> list[int]:
    """What the ranks of a communicator are called: by their numbers in ``MPI.COMM_WORLD``, if all have one."""
    here, everyone = comm.Get_group(), MPI.COMM_WORLD.Get_group()
    numbers = here.Translate_ranks(list(range(comm.Get_size())), everyone)
    here.Free()
    everyone.Free()
    return list(range(len(numbers))) if MPI.UNDEFINED in numbers else list(numbers)


def _nodes(comm: Counted, places: Sequence[int]) -> list[tuple[int, ...]]:
    """The places of the ranks of each node; a rank of which nothing is known is alone."""
    nodes: dict[str, list[int]] = {}
    for place, there in sorted(zip(places, comm.allgather(here(MPI.COMM_WORLD.Get_rank())))):
        nodes.setdefault(there.machine or f"alone {place}", []).append(place)
    return [tuple(some) for some in nodes.values()]


def _shared(comm: Counted, places: Sequence[int], near: Sequence[int]) -> tuple[mmap.mmap | None, set[int]]:
    """Memory of all ranks of a node, None if it cannot be had; and the places of all ranks that cannot have it."""
    place, word = places[comm.Get_rank()], secrets.token_bytes(16)
    own = _file(len(near) * _BYTES) if place == near[0] else None
    if own is not None:
        os.pwrite(own[0], word, _WORD)
    path, word = dict(zip(places, comm.allgather((own and own[1], word))))[near[0]]
    memory = None
    with suppress(OSError, ValueError):
        if path is not None:
            fd = os.open(path, os.O_RDWR)
            try:
                if os.pread(fd, 16, _WORD) == word:
                    memory = mmap.mmap(fd, len(near) * _BYTES)
            finally:
                os.close(fd)
    without = {p for p, has in zip(places, comm.allgather(memory is not None)) if not has}
    if own is not None:
        os.close(own[0])
        if not own[1].startswith("/proc/"):
            os.unlink(own[1])
    return (None if without & {*near} else memory), without


def _file(size: int) -> tuple[int, str] | None:
    """An empty file that has no name, or soon has none, and the path by which others can open it now."""
    try:
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("spmdsim")
            path = f"/proc/{os.getpid()}/fd/{fd}"
        else:
            fd, path = tempfile.mkstemp(prefix="spmdsim")
        os.ftruncate(fd, size)
    except OSError:
        return None
    return fd, path
