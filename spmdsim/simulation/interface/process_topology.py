"""Topologies: ranks with neighbours, and ranks on a grid."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np

from spmdsim.errors import many
from spmdsim.simulation.data.constants import PROC_NULL, UNDEFINED, MPIError
from spmdsim.simulation.data.open_handles import remove_handle
from spmdsim.simulation.engine.collective_calls import CollectiveCall
from spmdsim.simulation.interface import neighbour_collectives
from spmdsim.simulation.interface.collective_methods import add_collectives
from spmdsim.simulation.interface.simulated_comm import COMM_NULL, Intracomm

_frame = sys._getframe


class Topocomm(Intracomm):
    """A communicator whose ranks have neighbours."""

    def _sources(self) -> list[tuple[int, int]]:
        """Return a pair (source, slot) for each rank that sends to this one; PROC_NULL for a missing one.

        The slot is the position of the block for this rank in the source's send buffer.
        """
        raise NotImplementedError

    @property
    def inedges(self) -> list[int]:
        """Ranks that send to this rank in neighbour exchanges."""
        return [rank for rank, _ in self._sources()]

    @property
    def outedges(self) -> list[int]:
        """Ranks to which this rank sends in neighbour exchanges."""
        return self.inedges

    indegree = property(lambda self: len(self.inedges))
    outdegree = property(lambda self: len(self.outedges))
    degrees = property(lambda self: (self.indegree, self.outdegree))
    inoutedges = property(lambda self: (self.inedges, self.outedges))


add_collectives(Topocomm, vars(neighbour_collectives))


class Cartcomm(Topocomm):
    """A communicator whose ranks form a grid; the last dimension varies fastest."""

    def _sources(self) -> list[tuple[int, int]]:
        """Return a pair (neighbour, slot) for each neighbour; see ``Topocomm._sources``.

        Neighbours are the previous and the next rank in each dimension, in this order; one beyond an edge is
        PROC_NULL. This rank is the next rank of its previous one, so the slots for dimension d are 2 d + 1 and 2 d.
        For example, rank 1 in a row of 3 ranks gets [(0, 1), (2, 0)].
        """
        neighbours = []
        for dim in range(len(self._shared.grid[0])):
            before, after = shifted_ranks(self._shared.grid, self._rank, dim, 1)
            neighbours += [(before, 2 * dim + 1), (after, 2 * dim)]
        return neighbours

    def Get_dim(self) -> int:
        """Return the number of dimensions."""
        return len(self._shared.grid[0])

    dim = property(Get_dim)
    ndim = property(Get_dim)

    def Get_topo(self) -> tuple[list[int], list[int], list[int]]:
        """Return dims, periods and the coordinates of this rank."""
        dims, periods = self._shared.grid
        return list(dims), [int(p) for p in periods], self.Get_coords(self._rank)

    topo = property(Get_topo)
    dims = property(lambda self: self.Get_topo()[0])
    periods = property(lambda self: self.Get_topo()[1])
    coords = property(lambda self: self.Get_topo()[2])

    def Get_coords(self, rank: int) -> list[int]:
        """Return the coordinates of a rank; raise an MPI error if the rank does not exist."""
        if not 0 <= rank < self.size:
            raise MPIError("ERR_RANK", f"the rank must be 0 to {self.size - 1}, got {rank}")
        return coords_of(self._shared.grid[0], rank)

    def Get_cart_rank(self, coords: Sequence[int]) -> int:
        """Return the rank at the given coordinates; periodic dimensions wrap around.

        Args:
            coords: one index per dimension; surplus ones are ignored.

        Raises:
            MPIError: If a coordinate is outside a dimension that is not periodic.
            ValueError: If there are fewer coordinates than dimensions.
        """
        dims, periods = self._shared.grid
        inside = []
        for at, extent, periodic in zip(coords, dims, periods):
            if not periodic and not 0 <= at < extent:
                raise MPIError("ERR_ARG", f"the coordinate must be 0 to {extent - 1}, got {at}")
            inside.append(at % extent)
        return rank_at(dims, inside)

    def Shift(self, direction: int, disp: int) -> tuple[int, int]:
        """Return source and destination if all ranks move ``disp`` steps along a dimension.

        A rank beyond an edge is PROC_NULL; periodic dimensions wrap around.

        Args:
            direction: the dimension, from 0.
            disp: number of steps; may be negative.

        Raises:
            MPIError: If the dimension does not exist.
        """
        if not 0 <= direction < self.Get_dim():
            raise MPIError("ERR_DIMS", f"direction must be 0 to {self.Get_dim() - 1}, got {direction}")
        return shifted_ranks(self._shared.grid, self._rank, direction, disp)

    def Sub(self, remain_dims: Sequence[bool]) -> Any:
        """Divide the grid into smaller grids, whose ranks differ only in the remaining dimensions.

        For example, in a 2 × 3 grid, [False, True] keeps the second dimension: each of the two rows becomes a
        communicator of 3 ranks. All ranks of the grid must call it; it blocks until they have.

        Args:
            remain_dims: one flag per dimension; true for a remaining one.

        Returns:
            The communicator of this rank, whose grid has the remaining dimensions with their periods. Its ranks are
            in the order of the remaining coordinates.

        Raises:
            MPIError: If there is another number of flags than dimensions.
        """
        dims, periods = self._shared.grid
        if len(remain_dims) != len(dims):
            raise MPIError(
                "ERR_DIMS",
                f"remain_dims must have {many(len(dims), 'flag')}, one per dimension, got {len(remain_dims)}",
            )
        remaining = [dim for dim, flag in enumerate(remain_dims) if flag]
        dropped = [dim for dim, flag in enumerate(remain_dims) if not flag]
        coords = self.Get_coords(self._rank)
        color = rank_at([dims[dim] for dim in dropped], [coords[dim] for dim in dropped])
        key = rank_at([dims[dim] for dim in remaining], [coords[dim] for dim in remaining])
        comm = self._split_by_color(color, key, "Sub", _frame(1))
        remove_handle(comm)  # the program gets the handle of the grid instead
        comm._shared.grid = tuple(dims[dim] for dim in remaining), tuple(periods[dim] for dim in remaining)
        comm._shared.name = f"{self._shared.name}.Sub"
        return Cartcomm.make(comm._shared, comm._rank, self._task)


def coords_of(dims: Sequence[int], rank: int) -> list[int]:
    """Return the coordinates of a rank on a grid; the last dimension varies fastest."""
    return [int(at) for at in np.unravel_index(rank, tuple(dims))]


def rank_at(dims: Sequence[int], coords: Sequence[int]) -> int:
    """Return the rank at the given coordinates of a grid; 0 for a grid without dimensions."""
    return int(np.ravel_multi_index(tuple(coords), tuple(dims))) if dims else 0


def shifted_ranks(grid: Any, rank: int, direction: int, disp: int) -> tuple[int, int]:
    """Return the ranks ``disp`` steps before and after a rank in one dimension.

    A rank beyond the edge of a dimension that is not periodic is PROC_NULL.

    Args:
        grid: a pair (dims, periods): the extents, and one flag per dimension that is true if it wraps around.
        rank: the rank; the last dimension varies fastest.
        direction: the dimension, from 0; not checked.
        disp: number of steps.

    >>> shifted_ranks(((4,), (True,)), rank=0, direction=0, disp=1)
    (3, 1)
    """
    dims, periods = grid
    coords = coords_of(dims, rank)

    def neighbour(step: int) -> int:
        at = coords[direction] + step
        if not periods[direction] and not 0 <= at < dims[direction]:
            return PROC_NULL
        return rank_at(dims, [*coords[:direction], at % dims[direction], *coords[direction + 1 :]])

    return neighbour(-disp), neighbour(disp)


def _grid_of(comm: Any, dims: Any, periods: Any) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    """Return dims and periods of a grid as tuples.

    Args:
        comm: the communicator of its ranks.
        dims: the extent of each dimension, or one number.
        periods: one flag per dimension, or one for all; None for none.

    Raises:
        MPIError: If an extent is below 1, or the grid has too many ranks.
        ValueError: If the numbers of dims and periods differ.
    """
    extents = [int(dims)] if isinstance(dims, int) else [int(extent) for extent in dims]
    if periods is None:
        periods = [False] * len(extents)
    wraps = [bool(periods)] * len(extents) if isinstance(periods, bool | int) else list(periods)
    if len(wraps) != len(extents):
        raise ValueError(
            f"periods must have {many(len(extents), 'item')}, one per dimension, got {len(wraps)}"
        )
    if any(extent < 1 for extent in extents):
        raise MPIError("ERR_DIMS", f"dims must be 1 or more, got {extents}")
    if prod(extents) > comm.size:
        raise MPIError(
            "ERR_DIMS", f"a grid of {extents} needs {many(prod(extents), 'rank')}, not {comm.size}"
        )
    return tuple(extents), tuple(bool(flag) for flag in wraps)


def map_cart(comm: Any, dims: Any, periods: Any) -> int:
    """Return this rank's number in a grid, or UNDEFINED; the arguments are those of ``create_cart``."""
    return int(comm._rank) if comm._rank < prod(_grid_of(comm, dims, periods)[0]) else UNDEFINED


def create_cart(comm: Any, dims: Any, periods: Any, frame: Any) -> Any:
    """Return a communicator of the first ranks of ``comm``, which form a grid.

    For example, with dims (2, 3) the first 6 ranks form the grid; other ranks get COMM_NULL. The function blocks
    until all ranks of ``comm`` have called it. Dims or periods that differ between ranks end the run with a finding.

    Args:
        comm: a communicator; all its ranks call the function.
        dims: the extent of each dimension, or one number for one dimension.
        periods: True for each dimension that wraps around, or one value for all; None for none.
        frame: the caller's frame, to find the line of the call.

    Raises:
        MPIError: If an extent is below 1, or the grid has too many ranks.
        ValueError: If the numbers of dims and periods differ.
    """
    grid = _grid_of(comm, dims, periods)
    extents = grid[0]

    def answer(calls: list[CollectiveCall]) -> None:
        shared = calls[0].comm
        ranks = shared.ranks[: prod(extents)]
        state = shared.create_state(ranks, "Create_cart", grid)
        for call in calls:
            call.value = state if call.rank < len(ranks) else None

    facts = {"dims": grid[0], "periods": grid[1]}
    agreed = comm._agree("Create_cart", None, answer, frame, facts)
    return COMM_NULL if agreed is None else Cartcomm.make(agreed, comm._rank, comm._task)


def Compute_dims(nnodes: int, dims: Any) -> list[int]:
    """Return the extents of a grid of ``nnodes`` ranks, as equal as possible, largest first.

    Of all factorisations the one with the smallest difference between largest and smallest extent is chosen. Extents
    that the caller fixed stay in their positions.

    Args:
        nnodes: number of ranks.
        dims: number of dimensions, or a list of extents in which 0 stands for an extent to choose.

    Raises:
        MPIError: If ``nnodes`` is below 1, or not a multiple of the fixed extents, or not their product if all are
            fixed.

    >>> Compute_dims(12, 2), Compute_dims(12, [0, 2])
    ([4, 3], [6, 2])
    """
    extents = [0] * dims if isinstance(dims, int) else [int(extent) for extent in dims]
    fixed = prod(extent for extent in extents if extent)
    free = extents.count(0)
    if nnodes < 1 or nnodes % fixed or (not free and fixed != nnodes):
        raise MPIError(
            "ERR_DIMS",
            f"nnodes must be 1 or more, a multiple of the fixed dimensions {extents}, got {nnodes}",
        )
    factors = iter(_balanced_factors(nnodes // fixed, free)) if free else iter(())
    return [extent or next(factors) for extent in extents]


def _balanced_factors(total: int, parts: int) -> list[int]:
    """Return ``parts`` factors of a number that are as close as possible, largest first.

    The difference between the largest and the smallest factor is minimal; of equal differences, the list that is
    lexicographically first is returned.

    >>> _balanced_factors(12, 2)
    [4, 3]
    """
    divisors = [d for d in range(1, total + 1) if total % d == 0]
    heads = (head for head in product(divisors, repeat=parts - 1) if total % prod(head) == 0)
    factorisations = (sorted([*head, total // prod(head)], reverse=True) for head in heads)
    return min(factorisations, key=lambda factors: (factors[0] - factors[-1], factors))
