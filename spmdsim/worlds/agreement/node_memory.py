"""The memory of a board: shared by the ranks of a node, copied from other nodes.

The memory has no name in any folder, so nothing stays behind, however a job ends.
"""

from __future__ import annotations

import mmap
import os
import secrets
import tempfile
from collections.abc import Sequence
from contextlib import suppress

from mpi4py import MPI

from spmdsim.cost.node_map import NodeMap
from spmdsim.errors import WorldError
from spmdsim.worlds.agreement.courier import Courier
from spmdsim.worlds.agreement.other_nodes import OtherNode
from spmdsim.worlds.agreement.process_state import ProcessPlace, find_own_place, map_nodes
from spmdsim.worlds.agreement.shared_board import AREA, SharedBoard

#: Index of the bytes by which ranks verify that they opened the same memory: the unused end of the first area's head.
_TOKEN = 80
_BYTES = AREA * 8


def world_ranks(comm: MPI.Comm) -> list[int]:
    """Return the number in ``MPI.COMM_WORLD`` of each rank of a communicator, in its order.

    If some ranks have none there, as in a group of two jobs, return 0, 1, 2, … for all. Nothing is sent.

    Args:
        comm: the communicator.
    """
    members, everyone = comm.Get_group(), MPI.COMM_WORLD.Get_group()
    numbers = members.Translate_ranks(list(range(comm.Get_size())), everyone)
    members.Free()
    everyone.Free()
    return list(range(len(numbers))) if MPI.UNDEFINED in numbers else list(numbers)


def gather_places(comm: MPI.Comm) -> list[ProcessPlace]:
    """Return the machine and the process of each rank of a communicator; all of them must call it."""
    # Call MPI itself, because a world's communicators count their traffic.
    return MPI.Comm.allgather(comm, find_own_place(MPI.COMM_WORLD.Get_rank()))


def find_near_processes(processes: Sequence[ProcessPlace], rank: int) -> dict[int, int]:
    """Return the process ids of the ranks of a rank's node, including its own.

    The dict is empty on a machine without identity (:func:`find_own_place`).

    Args:
        processes: the place of each rank, as :func:`gather_places` returns it.
        rank: the rank.
    """
    machine = processes[rank].machine
    return {number: place.process for number, place in enumerate(processes) if place.machine == machine != ""}


def make_board(comm: MPI.Comm, processes: Sequence[ProcessPlace]) -> tuple[SharedBoard, list[int]]:
    """Create a shared board for the ranks of a communicator; all of them must call it.

    The board is the memory of the ranks' call logs, with an area for each rank. The ranks of one node share their
    areas. If one of them cannot open the shared memory, each rank of its node counts as a node of its own. Areas of
    other nodes are copies, which a thread of each process sends over TCP.

    Args:
        comm: the communicator.
        processes: the machine and the process of each rank of ``comm``.

    Returns:
        The board.
        The place of each rank of ``comm`` on it: the rank's index among the sorted numbers in the job. For example, if
        the ranks of ``comm`` have the numbers 6, 2, 4 in the job, their places are 2, 0, 1.

    Raises:
        WorldError: If a rank cannot reach ranks of another node; on all ranks.
    """
    rank, ranks = comm.Get_rank(), world_ranks(comm)
    members = sorted(ranks)
    places = [members.index(number) for number in ranks]
    nodes = _group_places(map_nodes(processes), places)
    near = next(node for node in nodes if places[rank] in node)
    memory, places_without_memory = _share_memory(comm, places, near)
    if memory is None:  # each of these ranks is a node of its own
        memory, near = mmap.mmap(-1, _BYTES), (places[rank],)
    nodes = _split_nodes(nodes, places_without_memory)
    areas = _map_areas(memory, near, len(members))
    if len(nodes) == 1:
        return SharedBoard(areas, members, places[rank]), places
    courier = Courier()
    addresses = dict(zip(places, comm.allgather(courier.address)))
    other_nodes = [OtherNode(node, [addresses[p] for p in node], rank) for node in nodes if node != near]
    board = SharedBoard(areas, members, places[rank], courier.follow(other_nodes), courier.refresh)
    courier.serve(board)
    problem = next(filter(None, comm.allgather(courier.reach(board))), None)
    if problem is not None:
        raise WorldError(
            f"ranks of different nodes cannot see what each other call: {problem}; SPMDSIM_CHECK=0 goes without"
        )
    return board, places


def _group_places(nodes: NodeMap, places: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the places of the ranks of each node, sorted, in the order of the nodes' first places.

    Args:
        nodes: the node of each rank.
        places: the place of each rank.
    """
    groups = [tuple(sorted(places[rank] for rank in nodes.ranks_of(node))) for node in range(nodes.count)]
    return sorted(groups)


def _split_nodes(nodes: Sequence[tuple[int, ...]], without: set[int]) -> list[tuple[int, ...]]:
    """Split each node with a rank that lacks shared memory into nodes of one rank.

    >>> _split_nodes([(0, 1), (2, 3)], {3})
    [(0, 1), (2,), (3,)]

    Args:
        nodes: the places of each node's ranks.
        without: the places of ranks without shared memory.
    """
    split_nodes: list[tuple[int, ...]] = []
    for node in nodes:
        if without & {*node}:
            split_nodes += [(place,) for place in node]
        else:
            split_nodes.append(node)
    return split_nodes


def _map_areas(memory: mmap.mmap, near: Sequence[int], count: int) -> list[memoryview]:
    """Return each rank's area of the board as int64 numbers, by place.

    Args:
        memory: the areas of this node's ranks, one after the other.
        near: the places of this node's ranks, sorted; other ranks get an own area of zeros, for copies.
        count: the number of ranks of the board.
    """
    numbers, areas = memoryview(memory).cast("q"), []
    for place in range(count):
        if place in near:
            first = near.index(place) * AREA
            areas.append(numbers[first : first + AREA])
        else:
            areas.append(memoryview(mmap.mmap(-1, _BYTES)).cast("q"))
    return areas


def _share_memory(
    comm: MPI.Comm, places: Sequence[int], near: Sequence[int]
) -> tuple[mmap.mmap | None, set[int]]:
    """Create a file for the areas of this node's ranks, and map it to memory.

    All ranks of all nodes must call it. The first rank of the node creates the file and writes random bytes to it. The
    others open it by its path, and use it only if they read these bytes there. The file has no name in any folder
    afterwards.

    Args:
        comm: the communicator of all ranks.
        places: the place of each rank of ``comm``.
        near: the places of this node's ranks, sorted.

    Returns:
        The memory, of ``len(near)`` areas; None if a rank of this node cannot open it.
        The places of all ranks, also of other nodes, that cannot open theirs.
    """
    place, token = places[comm.Get_rank()], secrets.token_bytes(16)
    own_file = _create_file(len(near) * _BYTES) if place == near[0] else None
    if own_file is not None:
        os.pwrite(own_file[0], token, _TOKEN)
    own_path = own_file[1] if own_file is not None else None
    paths_and_tokens = dict(zip(places, comm.allgather((own_path, token))))
    path, token = paths_and_tokens[near[0]]
    memory = None
    with suppress(OSError, ValueError):
        if path is not None:
            fd = os.open(path, os.O_RDWR)
            try:
                if os.pread(fd, 16, _TOKEN) == token:
                    memory = mmap.mmap(fd, len(near) * _BYTES)
            finally:
                os.close(fd)
    without = {p for p, has in zip(places, comm.allgather(memory is not None)) if not has}
    if own_file is not None:
        os.close(own_file[0])
        if not own_file[1].startswith("/proc/"):
            os.unlink(own_file[1])
    return (None if without & {*near} else memory), without


def _create_file(size: int) -> tuple[int, str] | None:
    """Create a file of ``size`` zeros; return ``(descriptor, path)``, or None if that fails.

    Other ranks of this node can open the path now. With ``memfd_create`` the path is in /proc and the file has no name
    in any folder. Otherwise it is a temporary file, which the caller unlinks.
    """
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
