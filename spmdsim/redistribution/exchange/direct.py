"""List the transfers of a direct exchange: every rank sends the overlap of its box with the boxes of other ranks.

Each rank receives every element of its target box once, and none that it already owns. So the received bytes equal the
lower bound for every pair of layouts: one mesh or two, any order and subset of ranks, uneven and empty shards.

Replicas of a source shard share the sending: by whole boxes in larger meshes, and element by element on few ranks
(:mod:`~spmdsim.redistribution.exchange.replica_shares`). A rank's own overlap is in its list, too, with itself as the peer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache

import numpy as np

from spmdsim.core import Layout
from spmdsim.errors import PlanError
from spmdsim.redistribution.exchange.replica_shares import shares
from spmdsim.redistribution.exchange.transfers import Transfer, Transfers
from spmdsim.redistribution.grid import Ends, Grid, grids

#: The largest number of ranks in both meshes for which transfers are cached.
FEW = 2048


def receives(src: Layout, dst: Layout, shape: Sequence[int], rank: int) -> Sequence[Transfer]:
    """Return the transfers to ``rank``, peer by peer, its own overlap included.

    Raises:
        PlanError: If pending values would have to be reduced.

    >>> from spmdsim.core import Mesh
    >>> mesh = Mesh((2,), ("x",))
    >>> receives(mesh("x", None), mesh(None, "x"), (4, 4), 0)
    (Transfer(peer=0, box=((0, 2), (0, 2))), Transfer(peer=1, box=((2, 4), (0, 2))))
    """
    return exchange_between(src, dst, tuple(shape)).transfers(rank, True)


def sends(src: Layout, dst: Layout, shape: Sequence[int], rank: int) -> Sequence[Transfer]:
    """Return the transfers from ``rank``, peer by peer, its own overlap included."""
    return exchange_between(src, dst, tuple(shape)).transfers(rank, False)


def sent_counts(src: Layout, dst: Layout, shape: tuple[int, ...], ranks: Iterable[int]) -> list[int]:
    """Return the elements that each rank of ``ranks`` sends to others: 0 if it is not in the source mesh."""
    between = exchange_between(src, dst, shape)
    parts = [(rank, between.transfers(rank, False)) for rank in ranks]
    return [sum([part.count for part in some if part.peer != rank]) for rank, some in parts]


class Between:
    """An exchange between two layouts, which lists the transfers of a rank.

    Raises:
        PlanError: If pending values would have to be reduced.
    """

    def __init__(self, src: Layout, dst: Layout, shape: tuple[int, ...]) -> None:
        if (src.partial or dst.partial) and (src.partial != dst.partial or src.mesh != dst.mesh):
            raise PlanError(
                f"an exchange moves values as they are, but {src} -> {dst} changes pending ones; reduce them first"
            )
        self.meshes, self._ends = (src.mesh, dst.mesh), (src, dst, shape)
        self.few = src.mesh.size + dst.mesh.size <= FEW
        self.shared = shares(Ends(src.mesh, src.dims, dst.mesh, dst.dims, shape))

    @cached_property
    def grids(self) -> tuple[Grid, Grid, int]:
        """The grids of both sides, see :func:`grids`."""
        return grids(*self._ends)

    def transfers(self, rank: int, receiving: bool) -> Sequence[Transfer]:
        """Return the transfers to a rank, or from it. Those of large meshes are not cached."""
        if self.few:
            return _few_transfers(self, rank, receiving)
        return (_receives if receiving else _sends)(self, rank)


exchange_between = lru_cache(maxsize=1024)(Between)


@lru_cache(maxsize=8192)
def _few_transfers(between: Between, rank: int, receiving: bool) -> tuple[Transfer, ...]:
    shared = between.shared
    if shared is None:
        return tuple((_receives if receiving else _sends)(between, rank))
    return shared.receives(rank) if receiving else shared.sends(rank)


def _receives(between: Between, rank: int) -> Sequence[Transfer]:
    src, dst = between.meshes
    if rank not in dst:
        return ()
    have, want, ndim = between.grids
    position = dst.position(rank)
    box = want.box(position)
    if [start for start, stop in box if start >= stop]:
        return ()
    spans = have.spans(box)
    base = have.positions(spans)
    holder = base if have.copies == 1 else _choose(have, want, spans, base, position)
    peers = have.ranks.rank[holder]
    if rank in src:
        mine = src.position(rank)
        own = [int(cell[mine]) for cell in have.cells]
        if all(a <= cell < b for cell, (a, b) in zip(own, spans)):
            peers[_ravel(own, spans)] = rank
    # The dims beyond the tensor's own have one overlapping cell each, so the cells of the others are complete.
    return Transfers(peers, have.clipped(spans[:ndim], box))


def _sends(between: Between, rank: int) -> Sequence[Transfer]:
    src, _ = between.meshes
    if rank not in src:
        return ()
    have, want, ndim = between.grids
    position = src.position(rank)
    box = have.box(position)
    if [start for start, stop in box if start >= stop]:
        return ()
    spans = want.spans(box)
    base = want.positions(spans)
    ranks = want.ranks.rank[(base[:, None] + want.copy_offsets).ravel()]
    own = have.ranks.positions(ranks)
    holds = own >= 0
    for cell in have.cells:
        holds &= cell[own] == cell[position]
    order = np.cumsum(~holds) - 1
    needing = len(ranks) - int(np.count_nonzero(holds))
    served = ~holds & (order * have.copies // max(needing, 1) == have.copy_numbers[position])
    served |= ranks == rank
    chosen = np.flatnonzero(served)
    return Transfers(ranks[chosen], want.clipped(spans[:ndim], box), chosen // want.copies)


def _choose(
    have: Grid, want: Grid, spans: list[tuple[int, int]], base: np.ndarray, position: int
) -> np.ndarray:
    """Return for each overlapping source cell the position of the replica that serves the rank at ``position``.

    The ranks that need a cell and do not own it are numbered in target order. Of ``n`` ranks, number ``j`` is served by
    replica ``j * copies // n``.
    """
    holders = base[:, None] + have.copy_offsets
    target = want.ranks.positions(have.ranks.rank[holders])
    inside, order, mine = target >= 0, np.zeros_like(target), np.zeros(len(base), np.int64)
    needing = np.ones(len(base), np.int64)
    index = np.indices([b - a for a, b in spans]).reshape(len(spans), len(base))
    for dim, (a, _) in enumerate(spans):
        cell = index[dim] + a
        edge = have.cuts[dim].edge_array
        first, last = want.cuts[dim].overlaps(edge[cell], edge[cell + 1])
        held = want.cells[dim][target]
        inside &= (held >= first[:, None]) & (held < last[:, None])
        width = last - first
        order = order * width[:, None] + held - first[:, None]
        mine = mine * width + want.cells[dim][position] - first
        needing *= width
    order = order * want.copies + want.copy_numbers[target]
    mine = mine * want.copies + want.copy_numbers[position]
    before = np.count_nonzero(inside & (order < mine[:, None]), axis=1)
    needing = needing * want.copies - np.count_nonzero(inside, axis=1)
    # A cell that the rank holds itself is served by itself afterwards; its number here only has to be valid.
    number = np.minimum((mine - before) * have.copies // np.maximum(needing, 1), have.copies - 1)
    array: np.ndarray = holders[np.arange(len(base)), number]
    return array


def _ravel(cells: Sequence[int], spans: Sequence[tuple[int, int]]) -> int:
    """Return the row-major number of a cell among the overlapping cells."""
    number = 0
    for cell, (a, b) in zip(cells, spans):
        number = number * (b - a) + cell - a
    return number
