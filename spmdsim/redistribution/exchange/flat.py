"""Exchange a tensor between two shapes whose cuts do not divide one another, by row-major element numbers.

A rank's shard, before and after, is a set of element numbers. Each rank receives the numbers of its target set that are
not in its source set, so the bytes are minimal. A granule is a block of consecutive element numbers that no cut divides.
All granules have one length, the largest possible one.
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
    """Elements that go from ``peer`` to a rank.

    ``source`` and ``target`` are their row-major positions in the peer's shard and in the rank's shard.
    """

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
    """Return the transfers to ``rank`` in an exchange, one per sender, in the order of the senders.

    The elements that stay on ``rank`` are a transfer from itself. Receivers take turns between replicas.

    Args:
        src: the layout before.
        dst: the layout after.
        shape: the global shape before.
        to_shape: the global shape after.
        rank: the receiver; it has no transfers if it is not in the target mesh.
    """
    return _compute_receives(src, dst, tuple(shape), tuple(to_shape), rank)


def flat_sends(
    src: Layout, dst: Layout, shape: Sequence[int], to_shape: Sequence[int], rank: int
) -> tuple[tuple[int, np.ndarray], ...]:
    """Return ``(peer, positions)`` for each rank that receives elements from ``rank``.

    The rank itself is included if it keeps some. ``positions`` are row-major positions in the shard of ``rank``. Peers
    are in the order of the target mesh. All receives of all ranks of the target mesh are computed, so the call is slow
    for many ranks.

    Args:
        src: the layout before.
        dst: the layout after.
        shape: the global shape before.
        to_shape: the global shape after.
        rank: the sender; it has no transfers if it is not in the source mesh.
    """
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
        messages: number of ranks from which the rank at each position receives elements.
        most_sent: elements that the busiest sender sends to other ranks.
    """

    received: np.ndarray
    messages: np.ndarray
    most_sent: int


@lru_cache(maxsize=256)
def flat_counts(src: Layout, dst: Layout, shape: tuple[int, ...], to_shape: tuple[int, ...]) -> FlatCounts:
    """Count the elements and messages between ranks when a tensor is redistributed and reshaped.

    The tensor goes from ``shape`` in layout ``src`` to ``to_shape`` in layout ``dst``. Elements that a rank owns
    already are not counted. Cached by value.

    Args:
        src: the layout before.
        dst: the layout after.
        shape: the global shape before.
        to_shape: the global shape after.
    """
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
def _compute_receives(
    src: Layout, dst: Layout, shape: tuple[int, ...], to_shape: tuple[int, ...], rank: int
) -> tuple[FlatTransfer, ...]:
    """Return the transfers of :func:`flat_receives`, cached by value; () outside the target mesh.

    There is one transfer per sender, in the order of rank numbers; its elements are in the order of the target shard.
    The elements are handled in granules: runs of consecutive element numbers that no cut of either side divides. If
    all cuts are at multiples of 4 elements before and of 6 after, a granule has 2 elements.

    Args:
        src: the layout before.
        dst: the layout after.
        shape: the global shape before.
        to_shape: the global shape after.
        rank: the receiver.
    """
    if rank not in dst.mesh:
        return ()
    source, target = Grid(src.mesh, src.dims, shape), Grid(dst.mesh, dst.dims, to_shape)
    size = math.gcd(_granule_size(source), _granule_size(target))
    position = dst.mesh.position(rank)
    # Both shards consist of whole granules. In the target shard they lie in the order of ``granules``.
    granules = _granules_of_box(target.box(position), to_shape, size)
    if not len(granules):
        return ()
    sender_positions, source_offsets = _choose_senders(source, granules * size, position, rank)
    peers = source.ranks.rank[sender_positions]
    by_peer = np.argsort(peers, kind="stable")
    senders, starts = np.unique(peers[by_peer], return_index=True)
    return tuple(
        FlatTransfer(
            int(peer),
            _elements_of_granules(source_offsets[target_granules] // size, size),
            _elements_of_granules(target_granules, size),
        )
        for peer, target_granules in zip(senders, np.split(by_peer, starts[1:]))
    )


def _granule_size(grid: Grid) -> int:
    """Return the number of elements in the largest blocks that no edge of a cell divides.

    It is the greatest common divisor of the element numbers at which cells begin, and 1 if the tensor is empty. Rows of
    6 elements, cut at 0, 2 and 4, give 2.
    """
    granule_size, stride = 0, 1
    for size, cut in zip(reversed(grid.sizes), reversed(grid.cuts)):
        granule_size = math.gcd(granule_size, *(stride * edge for edge in cut.edges))
        stride *= size
    return granule_size or 1


def _granules_of_box(box: Sequence[tuple[int, int]], shape: tuple[int, ...], granule_size: int) -> np.ndarray:
    """Return the numbers of the granules in a box of a tensor, in row-major order.

    Granule ``k`` begins at element ``k * granule_size`` of the tensor. The box consists of whole granules.
    """
    elements = np.zeros(1, np.int64)
    for size, (start, stop) in zip(shape, box):
        elements = (elements[:, None] * size + np.arange(start, stop)).ravel()
    return elements[::granule_size] // granule_size


def _choose_senders(
    source: Grid, elements: np.ndarray, target_position: int, receiver: int
) -> tuple[np.ndarray, np.ndarray]:
    """Choose the sender of each element: the receiver if it owns the element, else a replica.

    Args:
        source: the grid before the exchange.
        elements: row-major numbers of elements.
        target_position: the receiver's position in the target mesh. It chooses the replica,
            ``target_position % copies``: of 2 replicas, the first serves the even positions, the second the odd ones.
        receiver: the rank that receives the elements.

    Returns:
        ``(senders, offsets)``, arrays by element: the sender's position in the source mesh, and the row-major offset
        of the element in its sender's shard.
    """
    coordinates = np.unravel_index(elements, source.sizes) if source.sizes else ()
    # A cell's offsets add up to the position of its first replica.
    senders = np.full(len(elements), source.copy_offsets[target_position % source.copies])
    offsets = np.zeros(len(elements), np.int64)
    cells = []
    for coordinate, cut, cell_offsets in zip(coordinates, source.cuts, source.offsets):
        cell_numbers = np.searchsorted(cut.edge_array, coordinate, "right") - 1
        start, stop = cut.edge_array[cell_numbers], cut.edge_array[cell_numbers + 1]
        offsets = offsets * (stop - start) + coordinate - start
        senders += cell_offsets[cell_numbers]
        cells.append(cell_numbers)
    if receiver in source.mesh:
        own_position = source.mesh.position(receiver)
        is_owned = np.ones(len(elements), bool)
        for cell_numbers, cell_of_position in zip(cells, source.cells):
            is_owned &= cell_numbers == cell_of_position[own_position]
        senders[is_owned] = own_position
    return senders, offsets


def _elements_of_granules(granules: np.ndarray, granule_size: int) -> np.ndarray:
    """Return the element numbers of granules, in the order of the granules."""
    if granule_size == 1:
        return granules
    return (granules[:, None] * granule_size + np.arange(granule_size)).ravel()
