"""List the transfers of a direct exchange: every rank sends the overlap of its box with the boxes of other ranks.

Each rank receives every element of its target box once, and none that it already owns. So the received bytes equal the
lower bound for every pair of layouts: one mesh or two, any order and subset of ranks, uneven and empty shards.

Replicas of a source shard share the sending: by whole boxes in larger meshes, and element by element on few ranks. Each rank
that needs elements of the shard and does not own it gets its box once. In target order these boxes are one line of elements,
and each of ``k`` replicas sends a ``k``-th of the line. This is the least that the busiest sender can send, or within a few
percent of it, so that a receiver gets one box from each sender.

A rank's own overlap is in its list, too, with itself as the peer. A rank may have 65,535 peers, so transfers are stored as
columns.
"""

from __future__ import annotations

import gc
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import compress, pairwise, product, repeat
from typing import Any, NamedTuple

import numpy as np

from spmdsim.core import Bounds, Layout, Mesh
from spmdsim.core.layout import nested_blocks
from spmdsim.core.step import overlap, volume
from spmdsim.errors import PlanError, many
from spmdsim.redistribution.grid import (
    Ends,
    Entries,
    Grid,
    apart,
    grids,
    parts_of,
    piece_numbers,
    ranks_of,
)


class Transfer(NamedTuple):
    """A box of the global tensor that a rank receives from ``peer`` or sends to it. The peer may be the rank itself."""

    peer: int
    box: Bounds

    @property
    def count(self) -> int:  # type: ignore[override]
        """Number of elements."""
        return math.prod([stop - start for start, stop in self.box])


class Transfers(Sequence[Transfer]):
    """A sequence of transfers whose boxes are cells of a grid. A transfer is built when it is read.

    Args:
        peers: the peer of each transfer.
        edges: for each dimension, the starts of the cells and the end of the last one.
        cells: row-major number of each transfer's cell; None: all cells in order.

    >>> Transfers(np.array([5, 7]), [np.array([0, 2, 4]), np.array([0, 3])])[1]
    Transfer(peer=7, box=((2, 4), (0, 3)))
    """

    __slots__ = ("_cells", "_edges", "peers")

    def __init__(
        self, peers: np.ndarray, edges: Sequence[np.ndarray], cells: np.ndarray | None = None
    ) -> None:
        self.peers = peers
        self._edges = edges
        self._cells = cells

    def __len__(self) -> int:
        return len(self.peers)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple([self[number] for number in range(*index.indices(len(self)))])
        number = range(len(self))[index]
        cell = number if self._cells is None else self._cells[number]
        places = np.unravel_index(cell, [len(edges) - 1 for edges in self._edges])
        box = tuple([(int(edges[k]), int(edges[k + 1])) for edges, k in zip(self._edges, places)])
        return Transfer(int(self.peers[number]), box)

    def __iter__(self) -> Iterator[Transfer]:
        boxes = product(*[pairwise(edges.tolist()) for edges in self._edges])
        # Build all transfers at once: one by one, they would start the garbage collector a hundred times.
        collecting = gc.isenabled()
        gc.disable()
        try:  # tuple.__new__ skips the named constructor's overhead
            return iter(
                [*map(tuple.__new__, repeat(Transfer), zip(self.peers.tolist(), self._chosen(boxes)))]
            )
        finally:
            if collecting:
                gc.enable()

    def _chosen(self, boxes: Iterable[Bounds]) -> Iterable[Bounds]:
        """Return the boxes of the transfers, from the boxes of all cells."""
        cells, count = self._cells, math.prod([len(edges) - 1 for edges in self._edges])
        if cells is None:
            return boxes
        if np.any(cells[1:] <= cells[:-1]):
            return map(list(boxes).__getitem__, cells.tolist())
        if len(cells) == count:
            return boxes
        chosen = np.zeros(count, bool)
        chosen[cells] = True
        return compress(boxes, chosen.tobytes())

    def __repr__(self) -> str:
        return f"Transfers with {many(len(self), 'peer')}"


#: The largest mesh on which replicas share a box. On larger meshes one replica sends it.
FEW_RANKS = 32
#: A shared box is cut along its first dimension of this length; without one, along the dimension with the largest part.
LONG = 64
#: Percentages above the least that a replica may send, so that each receiver gets one box.
MORE = (0, 1, 2, 4)

#: Splits a box into a part of at most so many elements and the remainder.
Cut = Callable[[Bounds, int], tuple[list[Bounds], list[Bounds]]]


class Shares:
    """All transfers of an exchange by receiver and by sender. A rank's own overlap has the rank as its peer."""

    def __init__(self, ends: Ends) -> None:
        self._received: dict[int, list[Transfer]] = {}
        self._sent: dict[int, list[Transfer]] = {}
        have, src, want, dst, _ = ends
        slices = apart(ends)
        sources = _members(ends, have, src, slices)
        targets = _members(ends, want, dst, slices)
        for (slice_, box), holders in sources.items():
            needing = [
                (rank, part)
                for (other, wanted), ranks in targets.items()
                if other == slice_ and (part := overlap(box, wanted)) is not None
                for rank in ranks
            ]
            self._serve(holders, needing)

    def _serve(self, holders: list[int], needing: list[tuple[int, Bounds]]) -> None:
        held = set(holders)
        for rank, box in needing:
            if rank in held:
                self._add(rank, rank, box)
        line = [(rank, box) for rank, box in needing if rank not in held]
        for holder, rank, box in portions(line, holders):
            self._add(holder, rank, box)

    def _add(self, sender: int, receiver: int, box: Bounds) -> None:
        self._received.setdefault(receiver, []).append(Transfer(sender, box))
        self._sent.setdefault(sender, []).append(Transfer(receiver, box))

    def receives(self, rank: int) -> tuple[Transfer, ...]:
        """Return the transfers to a rank, by source shard."""
        return tuple(self._received.get(rank, ()))

    def sends(self, rank: int) -> tuple[Transfer, ...]:
        """Return the transfers from a rank."""
        return tuple(self._sent.get(rank, ()))

    @property
    def most_sent(self) -> int:
        """The most elements one rank sends to others."""
        sent = (sum(t.count for t in mine if t.peer != rank) for rank, mine in self._sent.items())
        return max(sent, default=0)

    @property
    def most_messages(self) -> int:
        """The most other ranks that one rank receives from."""
        return max((len({t.peer for t in mine} - {rank}) for rank, mine in self._received.items()), default=0)


def portions(line: Sequence[tuple[int, Bounds]], holders: Sequence[int]) -> Iterable[tuple[int, int, Bounds]]:
    """Return each holder's share of a line of boxes: ``(holder, receiver, box)``.

    A box is cut into one part per holder if a limit within `MORE` percent of the least allows that, else element by element.

    >>> list(portions([(5, ((0, 4),)), (6, ((0, 4),))], [0, 1, 2, 3]))
    [(0, 5, ((0, 2),)), (1, 5, ((2, 4),)), (2, 6, ((0, 2),)), (3, 6, ((2, 4),))]
    >>> list(portions([(5, ((0, 3), (0, 3)))], [0, 1]))
    [(0, 5, ((0, 1), (0, 3))), (0, 5, ((1, 2), (0, 2))), (1, 5, ((1, 2), (2, 3))), (1, 5, ((2, 3), (0, 3)))]
    """
    volumes = [volume(box) for _, box in line]
    total, before = sum(volumes), 0
    served = []
    for (rank, box), here in zip(line, volumes):
        first, last = before * len(holders) // total, ((before + here) * len(holders) - 1) // total
        served.append((rank, box, range(first, last + 1)))
        before += here
    least = -(-total // len(holders))
    limits = dict.fromkeys(least + least * percent // 100 for percent in MORE)
    pieces = next(filter(None, (_within(served, limit, _one_box) for limit in limits)), None)
    pieces = _within(served, least, _elements) if pieces is None else pieces
    assert pieces is not None  # for the type checker: element by element all fits
    return [(holders[number], rank, box) for number, rank, box in pieces]


def _within(
    served: Iterable[tuple[int, Bounds, range]], limit: int, cut: Cut
) -> list[tuple[int, int, Bounds]] | None:
    """Return boxes cut so that no holder sends more than ``limit`` elements; None if that is impossible."""
    pieces = []
    sent: Counter[int] = Counter()
    for rank, box, numbers in served:
        left = [box]
        for number in numbers:
            todo, left = left, []
            for one in todo:
                taken, rest = cut(one, limit - sent[number])
                pieces += [(number, rank, part) for part in taken]
                sent[number] += sum(map(volume, taken))
                left += rest
        if left:
            return None
    return pieces


def _one_box(box: Bounds, room: int) -> tuple[list[Bounds], list[Bounds]]:
    """Return the largest part of a box that is a box of at most ``room`` elements, and the remainder."""
    lengths, whole = [stop - start for start, stop in box], volume(box)
    if whole <= room:
        return [box], []
    long = [dim for dim, length in enumerate(lengths) if length >= LONG][:1]
    slabs = [(room // (whole // lengths[dim]), -dim) for dim in long or range(len(box))]
    most, dim = max(slabs, key=lambda slab: (slab[0] * (whole // lengths[-slab[1]]), slab[1]))
    return _halves(box, -dim, most)


def _elements(box: Bounds, room: int) -> tuple[list[Bounds], list[Bounds]]:
    """Return ``room`` elements of a box as rows and a part of a row, and the remainder."""
    dim = next((d for d, (start, stop) in enumerate(box) if stop - start > 1), None)
    if volume(box) <= room or dim is None:
        return ([box], []) if volume(box) <= room else ([], [box])
    slab = volume(box) // (box[dim][1] - box[dim][0])
    taken, rest = _halves(box, dim, room // slab)
    (row,), later = _halves(rest[0], dim, 1)
    some, others = _elements(row, room % slab)
    return [*taken, *some], [*others, *later]


def _halves(box: Bounds, dim: int, count: int) -> tuple[list[Bounds], list[Bounds]]:
    """Return a box cut after ``count`` indices of a dimension, as two lists of boxes that are not empty."""
    if not count:
        return [], [box]
    (start, stop), left, right = box[dim], box[:dim], box[dim + 1 :]
    middle = start + count
    rest = [(*left, (middle, stop), *right)] if middle < stop else []
    return [(*left, (start, middle), *right)], rest


def _members(
    ends: Ends, mesh: Mesh, entries: Entries, apart: tuple[str, ...]
) -> dict[tuple[int, Bounds], list[int]]:
    """Return the ranks that own each shard that is not empty, in order, by slice of the mesh and box."""
    dims = [nested_blocks(n, parts_of(mesh, entry)) for n, entry in zip(ends.shape, entries)]
    numbers = [piece_numbers(mesh, entry).tolist() for entry in entries]
    slices = piece_numbers(mesh, apart).tolist()
    ranks = ranks_of(mesh).rank.tolist()
    places: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    pieces = zip(*numbers) if numbers else [()] * mesh.size
    for rank, slice_, piece in zip(ranks, slices, pieces):
        places.setdefault((slice_, piece), []).append(rank)
    members = {}
    for slice_, piece in sorted(places):
        blocks = [blocks[number] for blocks, number in zip(dims, piece)]
        if all(length for _, length in blocks):
            members[slice_, tuple([(start, start + length) for start, length in blocks])] = places[
                slice_, piece
            ]
    return members


def shares(ends: Ends) -> Shares | None:
    """Return the cached transfers of an exchange; None if a mesh is large, or if the source has no replicas."""
    have, src, want, _, _ = ends
    if have.size > FEW_RANKS or want.size > FEW_RANKS:
        return None
    split = {axis for entry in src for axis in entry}
    if have.axis_size(*split, *apart(ends)) == have.size:
        return None
    return _cached_shares(ends)


_cached_shares = lru_cache(maxsize=2048)(Shares)


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
