"""Exchange a tensor between two shapes whose cuts do not divide one another, by row-major element numbers.

A rank's shard, before and after, is a set of element numbers. Each rank receives the numbers of its target set that are
not in its source set, so the bytes are minimal. Numbers are grouped into granules: the longest blocks that no cut divides.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from spmdsim.core import Layout
from spmdsim.redistribution.grid import Grid
from spmdsim.redistribution.steps.counted_step import CountedStep


class FlatExchange(CountedStep):
    """An exchange to another shape, ``to_shape``, by row-major element numbers."""

    def received_elements(self, rank: int) -> int:
        """Return the number of elements that ``rank`` receives from others."""
        transfers = flat_receives(self.src, self.dst, self.shape, self.shape_after, rank)
        return sum(transfer.count for transfer in transfers if transfer.peer != rank)

    def sent_elements(self, rank: int) -> int:
        """Return the number of elements that ``rank`` sends to others."""
        transfers = flat_sends(self.src, self.dst, self.shape, self.shape_after, rank)
        return sum(len(positions) for peer, positions in transfers if peer != rank)

    @property
    def received_by_position(self) -> np.ndarray:
        """Elements that each position of the target mesh receives."""
        return self._counts.received

    @property
    def most_moved(self) -> int:
        """Elements that the busiest rank receives or sends."""
        return max(self.most_received, self._counts.most_sent)

    @property
    def most_messages(self) -> int:
        """Messages that the busiest rank receives."""
        return int(self._counts.messages.max(initial=0))

    @property
    def _counts(self) -> FlatCounts:
        return flat_counts(self.src, self.dst, self.shape, self.shape_after)


@dataclass(frozen=True, eq=False)
class FlatTransfer:
    """Elements that go from ``peer`` to a rank: their row-major positions in the peer's shard and in the rank's shard."""

    peer: int
    source: np.ndarray
    target: np.ndarray

    @property
    def count(self) -> int:
        """Number of elements."""
        return len(self.source)


def flat_receives(
    src: Layout, dst: Layout, shape: Sequence[int], to_shape: Sequence[int], rank: int
) -> tuple[FlatTransfer, ...]:
    """Return the transfers to ``rank`` when a tensor of ``shape`` in ``src`` becomes one of ``to_shape`` in ``dst``.

    Its own elements are included, with itself as the peer. Receivers take turns between replicas.
    """
    return _flat_receives(src, dst, tuple(shape), tuple(to_shape), rank)


def flat_sends(
    src: Layout, dst: Layout, shape: Sequence[int], to_shape: Sequence[int], rank: int
) -> tuple[tuple[int, np.ndarray], ...]:
    """Return ``(peer, positions)`` for each rank that ``rank`` sends to, itself included: positions in its own shard."""
    transfers = []
    for peer in dst.mesh.rank_list:
        for transfer in flat_receives(src, dst, shape, to_shape, peer):
            if transfer.peer == rank:
                transfers.append((peer, transfer.source))
    return tuple(transfers)


class FlatCounts(NamedTuple):
    """Elements and messages of an exchange to another shape.

    Attributes:
        received: elements that the rank at each position of the target mesh receives from other ranks.
        messages: number of ranks that it receives them from.
        most_sent: elements that the busiest sender sends to other ranks.
    """

    received: np.ndarray
    messages: np.ndarray
    most_sent: int


@lru_cache(maxsize=256)
def flat_counts(src: Layout, dst: Layout, shape: tuple[int, ...], to_shape: tuple[int, ...]) -> FlatCounts:
    """Count the elements and messages of an exchange from ``shape`` in ``src`` to ``to_shape`` in ``dst``."""
    received, messages = np.zeros(dst.mesh.size, np.int64), np.zeros(dst.mesh.size, np.int64)
    sent: Counter[int] = Counter()
    for position, rank in enumerate(dst.mesh.rank_list):
        for transfer in flat_receives(src, dst, shape, to_shape, rank):
            if transfer.peer != rank:
                received[position] += transfer.count
                messages[position] += 1
                sent[transfer.peer] += transfer.count
    return FlatCounts(received, messages, max(sent.values(), default=0))


@lru_cache(maxsize=2048)
def _flat_receives(
    src: Layout, dst: Layout, shape: tuple[int, ...], to_shape: tuple[int, ...], rank: int
) -> tuple[FlatTransfer, ...]:
    if rank not in dst.mesh:
        return ()
    have, want = Grid(src.mesh, src.dims, shape), Grid(dst.mesh, dst.dims, to_shape)
    grain = math.gcd(_grain(have), _grain(want))
    position = dst.mesh.position(rank)
    numbers = _numbers(want.box(position), to_shape, grain)
    if not len(numbers):
        return ()
    holder, inside = _holders(have, numbers * grain, position, rank)
    peers = have.ranks.rank[holder]
    order = np.argsort(peers, kind="stable")
    senders, starts = np.unique(peers[order], return_index=True)
    parts = np.split(order, starts[1:])
    return tuple(
        FlatTransfer(int(peer), _spread(inside[part] // grain, grain), _spread(part, grain))
        for peer, part in zip(senders, parts)
    )


def _grain(grid: Grid) -> int:
    """Return the length of the longest block of row-major numbers that no cut of a grid divides."""
    grain, below = 0, 1
    for size, cut in zip(reversed(grid.sizes), reversed(grid.cuts)):
        grain = math.gcd(grain, *(below * edge for edge in cut.edges))
        below *= size
    return grain or 1


def _numbers(box: Sequence[tuple[int, int]], shape: tuple[int, ...], grain: int) -> np.ndarray:
    """Return the granules of a box in row-major order."""
    out, below = np.zeros(1, np.int64), 1
    parts = []
    for size, (start, stop) in zip(reversed(shape), reversed(box)):
        parts.append(np.arange(start, stop) * below)
        below *= size
    for part in reversed(parts):
        out = (out[:, None] + part).ravel()
    return out[::grain] // grain


def _holders(have: Grid, elements: np.ndarray, position: int, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a mesh position that owns each element number, and the element's position in the shard there."""
    index = np.unravel_index(elements, have.sizes) if have.sizes else ()
    holder, inside = np.zeros(len(elements), np.int64), np.zeros(len(elements), np.int64)
    cells = []
    for coordinate, cut, offset in zip(index, have.cuts, have.offsets):
        cell = np.searchsorted(cut.edge_array, coordinate, "right") - 1
        start = cut.edge_array[cell]
        inside = inside * (cut.edge_array[cell + 1] - start) + coordinate - start
        holder += offset[cell]
        cells.append(cell)
    holder += have.copy_offsets[position % have.copies]
    if rank in have.mesh:
        own = have.mesh.position(rank)
        mine = np.ones(len(elements), bool)
        for cell, held in zip(cells, have.cells):
            mine &= cell == held[own]
        holder[mine] = own
    return holder, inside


def _spread(granules: np.ndarray, grain: int) -> np.ndarray:
    """Return the element numbers of granules."""
    if grain == 1:
        return granules
    return (granules[:, None] * grain + np.arange(grain)).ravel()
