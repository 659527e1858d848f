"""Cartesian topologies: ranks on a grid, their neighbours, and exchanges between neighbours."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np

from spmdsim.errors import many
from spmdsim.simulation.data.constants import PROC_NULL, MPIError
from spmdsim.simulation.data.message_buffers import ObjectPayload, blocks, simple, typed, vector
from spmdsim.simulation.engine.collective_calls import RULES, CollectiveCall
from spmdsim.simulation.interface.collective_methods import meet
from spmdsim.simulation.interface.simulated_comm import COMM_NULL, Intracomm

_frame = sys._getframe


class Topocomm(Intracomm):
    """A communicator whose ranks have neighbours: the previous and the next rank in each dimension."""

    def _neighbours(self) -> list[tuple[int, int]]:
        """Return, per slot, the neighbour and the slot of the neighbour that points back."""
        neighbours = []
        for dim in range(len(self._shared.grid[0])):
            before, after = shift(self._shared.grid, self._rank, dim, 1)
            neighbours += [(before, 2 * dim + 1), (after, 2 * dim)]
        return neighbours

    @property
    def inedges(self) -> list[int]:
        """The ranks that send to this rank in neighbour exchanges."""
        return [rank for rank, _ in self._neighbours()]

    @property
    def outedges(self) -> list[int]:
        """The ranks to which this rank sends in neighbour exchanges."""
        return self.inedges

    indegree = property(lambda self: len(self.inedges))
    outdegree = property(lambda self: len(self.inedges))
    degrees = property(lambda self: (self.indegree, self.outdegree))
    inoutedges = property(lambda self: (self.inedges, self.outedges))

    def _meet(self, send: list[Any], receive: Any, single: bool, name: str, frame: Any) -> Any:
        call = CollectiveCall(RULES["neighbours"], send, receive, {}, listed=True)
        call.value = [(rank, 0 if single else part) for rank, part in self._neighbours()]
        return meet(self, call, name, frame)

    def Neighbor_allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        """Send one block to all neighbours and receive one from each."""
        receive = blocks(recvbuf, self.indegree)
        self._meet([simple(sendbuf)], receive, True, "Neighbor_allgather", _frame(1))

    def Neighbor_allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        """Send one block to all neighbours and receive a block of any size from each."""
        receive = vector(recvbuf, self.indegree)
        self._meet([simple(sendbuf)], receive, True, "Neighbor_allgatherv", _frame(1))

    def Neighbor_alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        """Send an equal block to each neighbour and receive one from each."""
        send, receive = blocks(sendbuf, self.outdegree), blocks(recvbuf, self.indegree)
        self._meet(send, receive, False, "Neighbor_alltoall", _frame(1))

    def Neighbor_alltoallv(self, sendbuf: Any, recvbuf: Any) -> None:
        """Send a block of any size to each neighbour and receive one from each."""
        send, receive = vector(sendbuf, self.outdegree), vector(recvbuf, self.indegree)
        self._meet(send, receive, False, "Neighbor_alltoallv", _frame(1))

    def Neighbor_alltoallw(self, sendbuf: Any, recvbuf: Any) -> None:
        """Send a block of any size and type to each neighbour and receive one from each."""
        send, receive = typed(sendbuf, self.outdegree), typed(recvbuf, self.indegree)
        self._meet(send, receive, False, "Neighbor_alltoallw", _frame(1))

    def neighbor_allgather(self, sendobj: Any) -> Any:
        """Send one object to all neighbours; return the list of theirs."""
        return self._meet([ObjectPayload(sendobj)], None, True, "neighbor_allgather", _frame(1))

    def neighbor_alltoall(self, sendobj: Sequence[Any]) -> Any:
        """Send one object to each neighbour; return the list of theirs."""
        if len(sendobj) != self.outdegree:
            raise ValueError(f"expecting {self.outdegree} items, got {len(sendobj)}")
        send = [ObjectPayload(one) for one in sendobj]
        return self._meet(send, None, False, "neighbor_alltoall", _frame(1))


class Cartcomm(Topocomm):
    """A communicator whose ranks form a grid; the last dimension varies fastest."""

    def Get_dim(self) -> int:
        """Return the number of dimensions."""
        return len(self._shared.grid[0])

    dim = property(Get_dim)
    ndim = property(Get_dim)

    def Get_topo(self) -> tuple[list[int], list[int], list[int]]:
        """Return dims, periods and the caller's coordinates."""
        dims, periods = self._shared.grid
        return list(dims), [int(p) for p in periods], self.Get_coords(self._rank)

    topo = property(Get_topo)
    dims = property(lambda self: self.Get_topo()[0])
    periods = property(lambda self: self.Get_topo()[1])
    coords = property(lambda self: self.Get_topo()[2])

    def Get_coords(self, rank: int) -> list[int]:
        """Return the coordinates of a rank."""
        if not 0 <= rank < self.size:
            raise MPIError("ERR_RANK", f"rank {rank} is not in 0 to {self.size - 1}")
        return coords_of(self._shared.grid[0], rank)

    def Get_cart_rank(self, coords: Sequence[int]) -> int:
        """Return the rank at some coordinates; periodic dimensions wrap around."""
        dims, periods = self._shared.grid
        inside = []
        for at, extent, periodic in zip(coords, dims, periods):
            if not periodic and not 0 <= at < extent:
                raise MPIError("ERR_ARG", f"coordinate {at} is not in 0 to {extent - 1}")
            inside.append(at % extent)
        return rank_at(dims, inside)

    def Shift(self, direction: int, disp: int) -> tuple[int, int]:
        """Return the source and destination if all ranks move ``disp`` steps; PROC_NULL beyond an edge."""
        if not 0 <= direction < self.Get_dim():
            raise MPIError("ERR_DIMS", f"direction {direction} is not in 0 to {self.Get_dim() - 1}")
        return shift(self._shared.grid, self._rank, direction, disp)

    def Sub(self, remain_dims: Sequence[bool]) -> Any:
        """Create communicators along the dimensions that remain."""
        dims, periods = self._shared.grid
        if len(remain_dims) != len(dims):
            raise MPIError("ERR_DIMS", f"{many(len(remain_dims), 'flag')} for {many(len(dims), 'dimension')}")
        keep = [bool(flag) for flag in remain_dims]
        grid = (
            tuple(d for d, k in zip(dims, keep) if k),
            tuple(p for p, k in zip(periods, keep) if k),
        )
        mine = self.Get_coords(self._rank)
        color = rank_at([1 if k else d for d, k in zip(dims, keep)], _masked(mine, keep, False))
        key = rank_at([d if k else 1 for d, k in zip(dims, keep)], _masked(mine, keep, True))
        comm = self._split(color, key, "Sub", _frame(1))
        comm._shared.grid = grid
        comm._shared.name = f"{self._shared.name}.Sub"
        return Cartcomm.make(comm._shared, comm._rank, self._task)


def _masked(coords: list[int], keep: list[bool], kept: bool) -> list[int]:
    return [at if k is kept else 0 for at, k in zip(coords, keep)]


def coords_of(dims: Sequence[int], rank: int) -> list[int]:
    """Return the coordinates of a rank; the last dimension varies fastest."""
    return [int(at) for at in np.unravel_index(rank, tuple(dims))]


def rank_at(dims: Sequence[int], coords: Sequence[int]) -> int:
    """Return the rank at some coordinates."""
    return int(np.ravel_multi_index(tuple(coords), tuple(dims)))


def shift(grid: Any, rank: int, direction: int, disp: int) -> tuple[int, int]:
    """Return the ranks ``disp`` steps before and after a rank in one dimension."""
    dims, periods = grid
    here = coords_of(dims, rank)

    def neighbour(step: int) -> int:
        at = here[direction] + step
        if not periods[direction] and not 0 <= at < dims[direction]:
            return PROC_NULL
        return rank_at(dims, [*here[:direction], at % dims[direction], *here[direction + 1 :]])

    return neighbour(-disp), neighbour(disp)


def create_cart(comm: Any, dims: Any, periods: Any, frame: Any) -> Any:
    """Arrange the first ranks of a communicator on a grid; other ranks get COMM_NULL."""
    extents = [int(dims)] if isinstance(dims, int) else [int(extent) for extent in dims]
    if periods is None:
        periods = [False] * len(extents)
    wraps = [bool(periods)] * len(extents) if isinstance(periods, bool | int) else list(periods)
    if len(wraps) != len(extents) or any(extent < 1 for extent in extents):
        raise MPIError("ERR_DIMS", f"dims {extents} and periods {wraps} are no grid")
    if prod(extents) > comm.size:
        raise MPIError(
            "ERR_DIMS", f"a grid of {extents} needs {many(prod(extents), 'rank')}, not {comm.size}"
        )
    grid = (tuple(extents), tuple(bool(flag) for flag in wraps))

    def answer(calls: list[CollectiveCall]) -> None:
        shared = calls[0].comm
        ranks = shared.ranks[: prod(extents)]
        state = shared.of_ranks(ranks, "Create_cart", grid)
        for call in calls:
            call.value = state if call.rank < len(ranks) else None

    agreed = comm._agree("Create_cart", None, answer, frame)
    return COMM_NULL if agreed is None else Cartcomm.make(agreed, comm._rank, comm._task)


def Compute_dims(nnodes: int, dims: Any) -> list[int]:
    """Distribute ranks over dimensions as evenly as possible; only entries of 0 are chosen.

    >>> Compute_dims(12, 2), Compute_dims(12, [0, 2])
    ([4, 3], [6, 2])
    """
    wanted = [0] * dims if isinstance(dims, int) else [int(extent) for extent in dims]
    fixed = prod(extent for extent in wanted if extent)
    free = wanted.count(0)
    if nnodes % fixed or (not free and fixed != nnodes):
        raise MPIError("ERR_DIMS", f"{many(nnodes, 'rank does', 'ranks do')} not fit the dimensions {wanted}")
    chosen = iter(_balanced(nnodes // fixed, free)) if free else iter(())
    return [extent or next(chosen) for extent in wanted]


def _balanced(total: int, parts: int) -> list[int]:
    """Return the factors of a number that are closest to each other, largest first."""
    divisors = [d for d in range(1, total + 1) if total % d == 0]
    heads = (head for head in product(divisors, repeat=parts - 1) if total % prod(head) == 0)
    every = (sorted([*head, total // prod(head)], reverse=True) for head in heads)
    return min(every, key=lambda factors: (factors[0] - factors[-1], factors))
