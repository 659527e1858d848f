"""The direct exchange: every rank sends exactly the overlap of its box with the boxes of the others.

Each rank receives every element of its target box once, and none that it already holds, so the bytes received
equal the lower bound for every pair of layouts: one mesh or two, any order and subset of ranks, uneven and empty
pieces. Where several ranks hold the same piece, what others need of it is shared out evenly among them: to the
element among few ranks (:mod:`~spmdsim.redistribution.exchange.shares`), by whole boxes in larger meshes.

A rank's own overlap is in its list too, with itself as the peer. Any two ranks exchange at most one box.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from spmdsim.core import Layout
from spmdsim.errors import PlanError
from spmdsim.redistribution.exchange.grid import Cuts, Ends, Grid, grids
from spmdsim.redistribution.exchange.shares import Shares, shares
from spmdsim.redistribution.exchange.transfer_columns import Transfer, Transfers

#: Up to so many ranks in both meshes together, transfers are made at once and remembered.
FEW = 2048


def receives(src: Layout, dst: Layout, shape: Sequence[int], rank: int) -> Sequence[Transfer]:
    """What ``rank`` receives, peer by peer, its own overlap included; from many ranks as columns.

    Args:
        src: the layout before.
        dst: the layout after, on any mesh.
        shape: global shape.
        rank: the receiving rank; one that is in no mesh receives nothing.

    Raises:
        PlanError: pending values would have to be reduced.

    >>> from spmdsim.core import Mesh
    >>> mesh = Mesh((2,), ("x",))
    >>> receives(mesh("x", None), mesh(None, "x"), (4, 4), 0)
    (Transfer(peer=0, box=((0, 2), (0, 2))), Transfer(peer=1, box=((2, 4), (0, 2))))
    """
    few = src.mesh.size + dst.mesh.size <= FEW
    return (_few_receives if few else _receives)(src, dst, tuple(shape), rank)


def sends(src: Layout, dst: Layout, shape: Sequence[int], rank: int) -> Sequence[Transfer]:
    """What ``rank`` sends, peer by peer, its own overlap included; the mirror image of :func:`receives`.

    Raises:
        PlanError: pending values would have to be reduced.
    """
    few = src.mesh.size + dst.mesh.size <= FEW
    return (_few_sends if few else _sends)(src, dst, tuple(shape), rank)


def check_exchange(src: Layout, dst: Layout) -> None:
    """Refuse an exchange that would have to reduce pending values.

    Raises:
        PlanError: the layouts wait for different reductions, or on different meshes.
    """
    if (src.partial or dst.partial) and (src.partial != dst.partial or src.mesh != dst.mesh):
        raise PlanError(
            f"an exchange moves values as they are, but {src} -> {dst} changes pending ones; reduce them first"
        )


@lru_cache(maxsize=4096)
def _few_receives(src: Layout, dst: Layout, shape: tuple[int, ...], rank: int) -> tuple[Transfer, ...]:
    shared = _shares(src, dst, shape)
    return tuple(_receives(src, dst, shape, rank)) if shared is None else shared.receives(rank)


@lru_cache(maxsize=4096)
def _few_sends(src: Layout, dst: Layout, shape: tuple[int, ...], rank: int) -> tuple[Transfer, ...]:
    shared = _shares(src, dst, shape)
    return tuple(_sends(src, dst, shape, rank)) if shared is None else shared.sends(rank)


def _shares(src: Layout, dst: Layout, shape: tuple[int, ...]) -> Shares | None:
    check_exchange(src, dst)
    return shares(Ends(src.mesh, src.dims, dst.mesh, dst.dims, shape))


def _receives(src: Layout, dst: Layout, shape: tuple[int, ...], rank: int) -> Sequence[Transfer]:
    check_exchange(src, dst)
    if rank not in dst.mesh:
        return ()
    have, want, ndim = grids(src, dst, shape)
    position = dst.mesh.position(rank)
    box = want.box(position)
    if any(start >= stop for start, stop in box):
        return ()
    spans = [cut.overlapping(*interval) for cut, interval in zip(have.cuts, box)]
    base = _outer([offset[a:b] for offset, (a, b) in zip(have.offsets, spans)])
    holder = base if have.copies == 1 else _choose(have, want, spans, base, position)
    peers = have.ranks.rank[holder]
    if rank in src.mesh:
        mine = src.mesh.position(rank)
        own = [int(cell[mine]) for cell in have.cells]
        if all(a <= cell < b for cell, (a, b) in zip(own, spans)):
            peers[_ravel(own, spans)] = rank
    # The dims beyond the tensor's own have one overlapping cell each, so the cells of the others are complete.
    return Transfers(peers, [_clipped(*what) for what in zip(have.cuts[:ndim], spans, box)])


def _sends(src: Layout, dst: Layout, shape: tuple[int, ...], rank: int) -> Sequence[Transfer]:
    check_exchange(src, dst)
    if rank not in src.mesh:
        return ()
    have, want, ndim = grids(src, dst, shape)
    position = src.mesh.position(rank)
    box = have.box(position)
    if any(start >= stop for start, stop in box):
        return ()
    spans = [cut.overlapping(*interval) for cut, interval in zip(want.cuts, box)]
    base = _outer([offset[a:b] for offset, (a, b) in zip(want.offsets, spans)])
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
    edges = [_clipped(*what) for what in zip(want.cuts[:ndim], spans, box)]
    return Transfers(ranks[chosen], edges, chosen // want.copies)


def _choose(
    have: Grid, want: Grid, spans: list[tuple[int, int]], base: np.ndarray, position: int
) -> np.ndarray:
    """For each overlapping source cell, the position of the copy that serves the rank at ``position``.

    The ranks that need a cell and do not hold it are numbered in target order; of ``n`` of them, number ``j``
    is served by copy ``j * copies // n``. Only the cell's holders are looked at, to know how many to leave out.
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


def _outer(parts: Sequence[np.ndarray]) -> np.ndarray:
    """All sums of one element of each array, the first array varying slowest."""
    out = np.zeros(1, np.int64)
    for part in parts:
        out = (out[:, None] + part).ravel()
    return out


def _ravel(cells: Sequence[int], spans: Sequence[tuple[int, int]]) -> int:
    """Row-major number of a cell among the overlapping ones."""
    number = 0
    for cell, (a, b) in zip(cells, spans):
        number = number * (b - a) + cell - a
    return number


def _clipped(cut: Cuts, span: tuple[int, int], interval: tuple[int, int]) -> np.ndarray:
    """The edges of a range of cells, cut off at an interval that overlaps all of them."""
    (a, b), (start, stop) = span, interval
    return np.concatenate(([start], cut.edge_array[a + 1 : b], [stop]))
