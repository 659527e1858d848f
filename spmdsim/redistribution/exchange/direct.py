"""List the transfers of a direct exchange: every rank sends the overlap of its box with the boxes of other ranks.

Each rank receives every element of its target box once, and none that it already owns. So the received bytes equal the
lower bound for every pair of layouts: one mesh or two, any order and subset of ranks, uneven and empty shards.

Replicas of a source shard share the sending: by whole boxes in larger meshes, and element by element on few ranks
(:mod:`~spmdsim.redistribution.exchange.replica_shares`). A rank's own overlap is in its list, too, with itself as the
peer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache

import numpy as np

from spmdsim.core import Layout
from spmdsim.errors import PlanError
from spmdsim.redistribution.exchange.replica_shares import shared_transfers
from spmdsim.redistribution.exchange.transfers import Transfer, Transfers
from spmdsim.redistribution.grid import Ends, Grid, grids

#: The largest number of ranks in both meshes for which transfers are cached.
FEW = 2048


def receives(src: Layout, dst: Layout, shape: Sequence[int], rank: int) -> Sequence[Transfer]:
    """Return the transfers to ``rank``, peer by peer, including its own overlap.

    Raises:
        PlanError: If pending values would have to be reduced.

    >>> from spmdsim.core import Mesh
    >>> mesh = Mesh((2,), ("x",))
    >>> receives(mesh("x", None), mesh(None, "x"), (4, 4), 0)
    (Transfer(peer=0, box=((0, 2), (0, 2))), Transfer(peer=1, box=((2, 4), (0, 2))))
    """
    return exchange_between(src, dst, tuple(shape)).transfers(rank, True)


def sends(src: Layout, dst: Layout, shape: Sequence[int], rank: int) -> Sequence[Transfer]:
    """Return the transfers from ``rank``, peer by peer, including its own overlap."""
    return exchange_between(src, dst, tuple(shape)).transfers(rank, False)


def count_sent(src: Layout, dst: Layout, shape: tuple[int, ...], ranks: Iterable[int]) -> list[int]:
    """Return the number of elements that each rank of ``ranks`` sends to others, in their order.

    It is 0 outside the source mesh.

    Args:
        src: the layout before.
        dst: the layout after.
        shape: the global shape.
        ranks: any rank numbers.

    Raises:
        PlanError: If pending values would have to be reduced.
    """
    between = exchange_between(src, dst, shape)
    transfers_by_rank = [(rank, between.transfers(rank, False)) for rank in ranks]
    return [
        sum([transfer.count for transfer in transfers if transfer.peer != rank])
        for rank, transfers in transfers_by_rank
    ]


class Between:
    """Exchange between two layouts; lists the transfers of each rank.

    Raises:
        PlanError: If pending values would have to be reduced.
    """

    def __init__(self, src: Layout, dst: Layout, shape: tuple[int, ...]) -> None:
        if (src.partial or dst.partial) and (src.partial != dst.partial or src.mesh != dst.mesh):
            raise PlanError(
                f"an exchange must not change pending reductions, got {src} -> {dst}; reduce them first"
            )
        self.meshes, self._ends = (src.mesh, dst.mesh), (src, dst, shape)
        self.few = src.mesh.size + dst.mesh.size <= FEW
        self.shared = shared_transfers(Ends(src.mesh, src.dims, dst.mesh, dst.dims, shape))

    @cached_property
    def grids(self) -> tuple[Grid, Grid, int]:
        """Source grid, target grid and number of tensor dimensions; see :func:`grids`."""
        return grids(*self._ends)

    def transfers(self, rank: int, receiving: bool) -> Sequence[Transfer]:
        """Return the transfers to a rank if ``receiving``, else the transfers from it.

        They are cached if both meshes together have at most :data:`FEW` ranks.
        """
        if self.few:
            return _few_transfers(self, rank, receiving)
        return (_list_received if receiving else _list_sent)(self, rank)


exchange_between = lru_cache(maxsize=1024)(Between)


@lru_cache(maxsize=8192)
def _few_transfers(between: Between, rank: int, receiving: bool) -> tuple[Transfer, ...]:
    """Return the transfers to or from a rank of small meshes.

    If replicas share boxes, they are the shared ones.
    """
    shared = between.shared
    if shared is None:
        return tuple((_list_received if receiving else _list_sent)(between, rank))
    return shared.receives(rank) if receiving else shared.sends(rank)


def _list_received(between: Between, rank: int) -> Sequence[Transfer]:
    """Return the transfers to ``rank``, one per source cell that its target box overlaps.

    A cell is a block of the source; several ranks may own replicas of it. A cell that the rank owns comes from
    itself. Of another cell's replicas, the one that :func:`_choose_replicas` assigns to this rank sends it. The
    transfers are in the row-major order of the cells. Empty outside the target mesh, and for an empty box.

    For example, on a mesh (2, 2), 8 elements are split along the first axis and then replicated. Rank 1 owns the
    elements 0 to 3, and gets 4 to 7 from rank 3; rank 0 gets them from rank 2.

    Args:
        between: the exchange.
        rank: the receiver.
    """
    src, dst = between.meshes
    if rank not in dst:
        return ()
    have, want, ndim = between.grids
    position = dst.position(rank)
    box = want.box(position)
    is_box_empty = any(start >= stop for start, stop in box)
    if is_box_empty:
        return ()
    spans = have.spans(box)  # per dimension, the first cell that the box overlaps, and the one after the last
    base = have.positions(spans)
    owner = base if have.copies == 1 else _choose_replicas(have, want, spans, base, position)
    peers = have.ranks.rank[owner]
    if rank in src:
        source_position = src.position(rank)
        own_cell = [int(cell[source_position]) for cell in have.cells]
        is_own_cell_wanted = all(first <= cell < last for cell, (first, last) in zip(own_cell, spans))
        if is_own_cell_wanted:
            peers[_number_cell(own_cell, spans)] = rank
    # The grids' further dimensions are mesh axes along which nothing moves (see `grids`). The box overlaps one cell
    # along each of them, so the edges of the tensor's own dimensions are enough.
    return Transfers(peers, have.list_edges(spans[:ndim], box))


def _list_sent(between: Between, rank: int) -> Sequence[Transfer]:
    """Return the transfers from ``rank``, one per target cell that it sends, in target order.

    The ranks that need elements of this rank's source cell and do not own it are divided into as many runs as the
    cell has replicas. The k-th replica serves the k-th run: of 5 ranks and 2 replicas, the first serves 3 ranks, the
    second 2. If the rank needs its own elements, a transfer to itself is among them. Empty outside the source mesh,
    and for an empty box.

    Args:
        between: the exchange.
        rank: the sender.
    """
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
    # The ranks whose target overlaps the source cell of `rank`, in target order: all replicas of each target cell.
    ranks = want.ranks.rank[(base[:, None] + want.copy_offsets).ravel()]
    source_positions = have.ranks.positions(ranks)
    owns_cell = source_positions >= 0
    for cell in have.cells:
        owns_cell &= cell[source_positions] == cell[position]
    # Number the others, which need the cell, and find the replica that serves each.
    need_numbers = np.cumsum(~owns_cell) - 1
    needing_count = len(ranks) - int(np.count_nonzero(owns_cell))
    serving_copies = need_numbers * have.copies // max(needing_count, 1)
    is_served = ~owns_cell & (serving_copies == have.copy_numbers[position])
    is_served |= ranks == rank
    served_numbers = np.flatnonzero(is_served)
    return Transfers(ranks[served_numbers], want.list_edges(spans[:ndim], box), served_numbers // want.copies)


def _choose_replicas(
    have: Grid, want: Grid, spans: list[tuple[int, int]], base: np.ndarray, position: int
) -> np.ndarray:
    """Return, for each source cell that a rank's target box overlaps, the replica that serves the rank.

    All ranks that need a cell and do not own it are numbered in target order. Of ``n`` ranks, number ``j`` is served by
    replica ``j * copies // n``. For example, 2 replicas serve 5 ranks as 0, 0, 0, 1, 1.

    Args:
        have: the source grid.
        want: the target grid.
        spans: the ranges of overlapping source cells.
        base: the source positions of the first replicas of these cells.
        position: the target position of the rank.

    Returns:
        An array of source positions. The entry of a cell that the rank owns itself has no meaning: the caller
        replaces it.
    """
    replicas = base[:, None] + have.copy_offsets
    target = want.ranks.positions(have.ranks.rank[replicas])
    inside, order, own_order = target >= 0, np.zeros_like(target), np.zeros(len(base), np.int64)
    needing_count = np.ones(len(base), np.int64)
    index = np.indices([last - first for first, last in spans]).reshape(len(spans), len(base))
    for dim, (first_cell, _) in enumerate(spans):
        cell = index[dim] + first_cell
        edge = have.cuts[dim].edge_array
        first, last = want.cuts[dim].cell_ranges(edge[cell], edge[cell + 1])
        cell_of_replica = want.cells[dim][target]
        inside &= (cell_of_replica >= first[:, None]) & (cell_of_replica < last[:, None])
        width = last - first
        order = order * width[:, None] + cell_of_replica - first[:, None]
        own_order = own_order * width + want.cells[dim][position] - first
        needing_count *= width
    order = order * want.copies + want.copy_numbers[target]
    own_order = own_order * want.copies + want.copy_numbers[position]
    before = np.count_nonzero(inside & (order < own_order[:, None]), axis=1)
    needing_count = needing_count * want.copies - np.count_nonzero(inside, axis=1)
    # The caller replaces the number of a cell that the rank owns itself. It only has to be a valid index here.
    number = np.minimum((own_order - before) * have.copies // np.maximum(needing_count, 1), have.copies - 1)
    chosen: np.ndarray = replicas[np.arange(len(base)), number]
    return chosen


def _number_cell(cells: Sequence[int], spans: Sequence[tuple[int, int]]) -> int:
    """Return the row-major number of a cell among the cells of ``spans``."""
    number = 0
    for cell, (first, last) in zip(cells, spans):
        number = number * (last - first) + cell - first
    return number
