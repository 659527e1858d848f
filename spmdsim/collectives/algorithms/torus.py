"""Bucket rings and complete exchange on tori of one, two, three or more dimensions.

The ranks stand in a grid, in row-major order; its extents are as equal as possible. Every message goes along one dimension.
On a torus of this shape the rings use links between neighbours only.

Sources: Barnett and others, "Global combine on mesh architectures with wormhole routing" (1993); Sack and Gropp, "Faster
topology-aware collective algorithms through non-minimal communication" (2012).
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import NamedTuple

from spmdsim.collectives.algorithm import Formula, built_in
from spmdsim.collectives.algorithms.rank_arithmetic import reduce_backwards
from spmdsim.collectives.factors import torus_shape
from spmdsim.collectives.instructions import Rounds, recv, send

SOURCE = "doi 10.1145/2145816.2145823"


class RankGrid(NamedTuple):
    """RankGrid of ranks in row-major order.

    Attributes:
        shape: the extent of each dimension.
    """

    shape: tuple[int, ...]

    def place(self, rank: int) -> tuple[int, ...]:
        """Return the coordinates of a rank.

        >>> RankGrid((2, 3)).place(5)
        (1, 2)
        """
        coordinates = []
        for extent in reversed(self.shape):
            rank, coordinate = divmod(rank, extent)
            coordinates.append(coordinate)
        return tuple(reversed(coordinates))

    def ranks(self, like: int, dim: int, coordinate: int, free: Collection[int] = ()) -> list[int]:
        """Return the ranks with a coordinate in one dimension, and otherwise with the coordinates of a rank.

        Args:
            like: the rank whose coordinates they have in other dimensions.
            dim: the dimension.
            coordinate: their coordinate in it, modulo its extent.
            free: dimensions in which they have all coordinates.

        >>> RankGrid((2, 3)).ranks(0, 1, 2), RankGrid((2, 3)).ranks(0, 1, 2, free=[0])
        ([2], [2, 5])
        """
        ranks = [0]
        for d, (default, extent) in enumerate(zip(self.place(like), self.shape)):
            fixed = [coordinate % extent if d == dim else default]
            ranks = [rank * extent + c for rank in ranks for c in (range(extent) if d in free else fixed)]
        return ranks

    def neighbour(self, rank: int, dim: int, distance: int) -> int:
        """Return the rank at a distance along a dimension, around the ring."""
        return self.ranks(rank, dim, self.place(rank)[dim] + distance)[0]


def ring_gather(rank: int, grid: RankGrid, order: list[int], step: int, parts: int, chunk: int) -> Rounds:
    """Yield the rounds of a rank in an all_gather: one ring for each dimension, one after the other.

    The ring of a dimension passes on what the rings before it gathered. A block is what one rank contributes.

    Args:
        rank: the rank whose rounds are yielded.
        grid: the grid of ranks.
        order: the dimensions, in the order in which their rings run.
        step: the direction in which all rings send, 1 or -1.
        parts: how many chunks a block has; block b has the chunks from ``b * parts`` on.
        chunk: the index, from 0 to ``parts - 1``, of the chunk of each block that is gathered.
    """
    for position, dim in enumerate(order):
        start, done = grid.place(rank)[dim], order[:position]
        right, left = (grid.neighbour(rank, dim, side) for side in (step, -step))
        for i in range(grid.shape[dim] - 1):
            sent, received = (grid.ranks(rank, dim, start - step * j, done) for j in (i, i + 1))
            yield [
                send(right, [block * parts + chunk for block in sent]),
                recv(left, [block * parts + chunk for block in received]),
            ]


@built_in("all_gather", "n", Formula("t", "q"), source=SOURCE)
def all_gather_bucket(rank: int, size: int, dimensions: int = 2) -> Rounds:
    """Run rings along one dimension of a torus after the other (bucket).

    Yields the rounds (lists of instructions) of ``rank`` among ``size`` ranks. Block b is chunk b.

    Args:
        rank: the rank whose rounds are yielded.
        size: the number of ranks.
        dimensions: the number of dimensions of the torus; see :func:`torus_shape`.
    """
    order = list(reversed(range(dimensions)))
    return ring_gather(rank, RankGrid(torus_shape(size, dimensions)), order, step=1, parts=1, chunk=0)


@built_in("reduce_scatter", "n", Formula("t", "q", "q"), in_order=False, source=SOURCE)
def reduce_scatter_bucket(rank: int, size: int, dimensions: int = 2) -> Rounds:
    """Reduce by rings along one dimension of a torus after the other (bucket).

    Yields the rounds (lists of instructions) of ``rank`` among ``size`` ranks: those of the all_gather in reverse, on a torus
    of ``dimensions`` dimensions. The order of the operands is not kept.
    """
    return reduce_backwards(all_gather_bucket(rank, size, dimensions))


@built_in("all_reduce", "n", Formula("2*t", "2*q", "q"), in_order=False, source=SOURCE)
def all_reduce_bucket(rank: int, size: int, dimensions: int = 2) -> Rounds:
    """Run a reduce_scatter, then an all_gather, both by rings along the dimensions of a torus (bucket).

    Yields the rounds (lists of instructions) of ``rank`` among ``size`` ranks, on a torus of ``dimensions`` dimensions. The
    order of the operands is not kept.
    """
    yield from reduce_scatter_bucket(rank, size, dimensions)
    yield from all_gather_bucket(rank, size, dimensions)


@built_in("all_gather", ("n", "2*d"), Formula("t", "q"), ports="2*d", source=SOURCE)
def all_gather_multiport_bucket(rank: int, size: int, dimensions: int = 2) -> Rounds:
    """Run rings in both directions of all dimensions of a torus at one time, on a part of each block.

    Yields the rounds (lists of instructions) of ``rank`` among ``size`` ranks. A block has ``2 * dimensions`` chunks. Half of
    them travel in each direction. Chunks of one direction start in different dimensions. So all links of a torus with equal
    extents are in use in every round. In one dimension it is a ring in two directions.

    Args:
        rank: the rank whose rounds are yielded.
        size: the number of ranks.
        dimensions: the number of dimensions of the torus; see :func:`torus_shape`.
    """
    grid, parts = RankGrid(torus_shape(size, dimensions)), 2 * dimensions
    gathers = []
    for chunk in range(parts):
        order = [(chunk // 2 + i) % dimensions for i in range(dimensions)]
        gathers.append(ring_gather(rank, grid, order, 1 - 2 * (chunk % 2), parts, chunk))
    for rounds in zip(*gathers):
        yield [move for moves in rounds for move in moves]


@built_in("reduce_scatter", ("n", "2*d"), Formula("t", "q", "q"), ports="2*d", in_order=False, source=SOURCE)
def reduce_scatter_multiport_bucket(rank: int, size: int, dimensions: int = 2) -> Rounds:
    """Reduce by rings in both directions of all dimensions of a torus at one time.

    Yields the rounds (lists of instructions) of ``rank`` among ``size`` ranks: those of the all_gather in reverse, on a torus
    of ``dimensions`` dimensions. The order of the operands is not kept.
    """
    return reduce_backwards(all_gather_multiport_bucket(rank, size, dimensions))


@built_in("all_reduce", ("n", "2*d"), Formula("2*t", "2*q", "q"), ports="2*d", in_order=False, source=SOURCE)
def all_reduce_multiport_bucket(rank: int, size: int, dimensions: int = 2) -> Rounds:
    """Reduce, then gather, by rings in both directions of all dimensions of a torus at one time.

    Yields the rounds (lists of instructions) of ``rank`` among ``size`` ranks, on a torus of ``dimensions`` dimensions. The
    order of the operands is not kept.
    """
    yield from reduce_scatter_multiport_bucket(rank, size, dimensions)
    yield from all_gather_multiport_bucket(rank, size, dimensions)


@built_in("all_to_all", "n*n", Formula("t", "tq"), source="doi 10.1109/71.642949")
def all_to_all_torus(rank: int, size: int, dimensions: int = 2) -> Rounds:
    """Exchange along one dimension of a torus after the other, all blocks for a coordinate in one message.

    Yields the rounds (lists of instructions) of ``rank`` among ``size`` ranks. A block moves once per dimension, to the
    coordinate of its destination.

    Args:
        rank: the rank whose rounds are yielded.
        size: the number of ranks.
        dimensions: the number of dimensions of the torus; see :func:`torus_shape`.
    """
    grid = RankGrid(torus_shape(size, dimensions))
    for dim, extent in enumerate(grid.shape):
        for i in range(1, extent):
            to, source = (grid.neighbour(rank, dim, side) for side in (i, -i))
            yield [
                send(to, _passing_blocks(grid, dim, rank, to)),
                recv(source, _passing_blocks(grid, dim, source, rank)),
            ]


def _passing_blocks(grid: RankGrid, dim: int, holder: int, to: int) -> list[int]:
    """Return the blocks that a rank sends to another one along a dimension of a complete exchange.

    Their sources differ from the sender in the dimensions before. Their destinations differ from the receiver in the
    dimensions after.
    """
    size, dimensions = math.prod(grid.shape), len(grid.shape)
    sources = grid.ranks(holder, dim, grid.place(holder)[dim], range(dim))
    targets = grid.ranks(to, dim, grid.place(to)[dim], range(dim + 1, dimensions))
    return [source * size + target for source in sources for target in targets]
