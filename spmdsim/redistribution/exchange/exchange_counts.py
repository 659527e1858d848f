"""Count elements and messages that ranks receive in a direct exchange, and elements that the busiest rank sends.

The counts follow from the cuts of each dimension, without a list of transfers. A planner prices many exchanges that
differ in the axes of one or two dimensions, so the counts of one dimension are cached. If everything divides, the
counts of the busiest rank are products of sizes, however many ranks there are: arrays with an entry for each of
65,536 ranks would take seconds and gigabytes. On up to ``FEW_RANKS`` ranks, where replicas share boxes, the counts
come from the arrays.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from spmdsim.redistribution.exchange.replica_shares import FEW_RANKS
from spmdsim.redistribution.grid import (
    Ends,
    block_counts,
    count_common_axes,
    cuts,
    idle_axes,
    piece_numbers,
    source_positions,
    split_bounds,
)


class ExchangeCounts:
    """Elements and messages of an exchange between two splits of a tensor.

    Replicas of a source block are counted as if they sent equally many elements. This is exact up to rounding, and a
    price then depends only on shares of the tensor's size. On up to ``FEW_RANKS`` ranks per mesh, replicas share the
    boxes that they send, so a receiver gets messages from several of them. On more ranks, one replica sends a box.

    >>> from spmdsim.core import Mesh
    >>> mesh = Mesh((2, 2), ("a", "b"))
    >>> counts = exchange_counts(Ends(mesh, (("a",), ()), mesh, ((), ("a",)), (4, 8)))
    >>> counts.received.tolist(), counts.messages.tolist(), counts.most_sent
    ([8, 8, 8, 8], [1, 1, 1, 1], 8.0)
    """

    def __init__(self, ends: Ends) -> None:
        self._ends = have, src, want, dst, shape = ends
        self._old, self._new = split_bounds(have, src, shape), split_bounds(want, dst, shape)
        self._positions = None if have == want else source_positions(have, want)
        source_bounds = self._old if self._positions is None else self._old[..., self._positions]
        #: Elements of the target block that each position of the target mesh owns already.
        self.owned: np.ndarray = _volumes(np.maximum(_intersect(source_bounds, self._new), 0))
        if self._positions is not None:
            self.owned[self._positions < 0] = 0
        self._wanted = _volumes(self._new[1] - self._new[0])
        #: Elements that each position of the target mesh receives from other ranks.
        self.received: np.ndarray = self._wanted - self.owned
        self.most_received = int(self.received.max())

    @cached_property
    def _blocks(self) -> SourceBlocks:
        """Source blocks: how many are distinct, the owners of each, and the block at each position.

        A rank that is not in the source mesh has the number after the last one. Ranks that differ along an axis that
        splits neither source nor target exchange nothing with each other. Their blocks therefore count as distinct,
        even if the bounds are equal.
        """
        have, src = self._ends.have, self._ends.src
        axes = (*[axis for entry in src for axis in entry], *idle_axes(self._ends))
        distinct = have.axis_size(*axes)
        numbers = piece_numbers(have, axes)
        positions = self._positions  # -1: the rank is not in the source mesh
        owned = numbers if positions is None else np.where(positions < 0, distinct, numbers[positions])
        return SourceBlocks(distinct, have.size // distinct, numbers, owned)

    @cached_property
    def messages(self) -> np.ndarray:
        """Number of messages to each position of the target mesh, as an int64 array.

        A message brings the elements that a rank needs of one source block; the rank's own block brings none. On up to
        ``FEW_RANKS`` ranks per mesh, replicas share what they send, so these elements may come in several messages.
        """
        have, src, want, dst, shape = self._ends
        if have.size <= FEW_RANKS and want.size <= FEW_RANKS:
            return self._count_few_messages()
        sources = (self._wanted > 0).astype(np.int64)
        for size, before, after in zip(shape, src, dst):
            old, new = cuts(size, block_counts(have, before)), cuts(size, block_counts(want, after))
            first, last = old.cell_ranges(new.start, np.maximum(new.stop, new.start + 1))
            sources *= (last - first)[piece_numbers(want, after)]
        return sources - (self.owned > 0)

    def _count_few_messages(self) -> np.ndarray:
        """Return the largest number of messages that each target position can receive, as an int array.

        A target position needs a source block if it does not own the block and their elements overlap. Positions in
        different slices along the idle axes need nothing of each other.

        - Without replicas of the source blocks, each needed block is one message.
        - With replicas, the replicas of a block share all the boxes that they send: each sends about equally many
          elements. So a box may be cut, and come in several messages. The largest possible number of senders
          (:func:`senders_of`) is counted. For example, two replicas send one box as 2 messages, but two boxes as one
          message each.
        """
        groups, blocks = idle_axes(self._ends), self._blocks
        needs = blocks.numbers[:, None] != blocks.owned  # [source position, target position]
        needs &= (_intersect(self._old[..., None], self._new[:, :, None]) > 0).all(axis=0)
        if groups:
            numbers = piece_numbers(self._ends.have, groups)
            needs &= numbers[:, None] == numbers
        messages: np.ndarray
        if blocks.replicas == 1:
            messages = needs.sum(axis=0)
            return messages
        boxes = needs.sum(axis=1)  # of the block of each source position
        # Each source block has one row per replica.
        messages = (senders_of(blocks.replicas, boxes) @ needs) // blocks.replicas
        return messages

    @property
    def most_messages(self) -> int:
        """Number of messages that the busiest rank receives."""
        return int(self.messages.max())

    @cached_property
    def most_sent(self) -> float:
        """Number of elements that the busiest rank sends, if replicas of a block share its sending.

        It is the largest number of elements of a source block that ranks without the block need, divided by the
        block's replicas. So it may be a fraction.
        """
        _, _, want, dst, _ = self._ends
        blocks = self._blocks
        copies = want.size // want.axis_size(
            *[axis for entry in dst for axis in entry], *idle_axes(self._ends)
        )
        kept_elements = np.bincount(blocks.owned, weights=self.owned, minlength=blocks.distinct)
        demand = _volumes(self._old[1] - self._old[0]) * copies - kept_elements[blocks.numbers]
        return float(demand.max()) / blocks.replicas


exchange_counts = lru_cache(maxsize=4096)(ExchangeCounts)


def senders_of(replicas: int, boxes: Any) -> Any:
    """Return the largest number of replicas from which the receiver of a box can receive.

    The boxes are one line that ``k`` replicas cut into equal shares. One of ``n`` boxes overlaps at most
    ``1 + ceil((k - gcd(k, n)) / n)`` shares.

    Args:
        replicas: the number of replicas, k.
        boxes: the number of boxes, n, or an array of such numbers; the result has its shape.
    """
    return 1 - (np.gcd(replicas, boxes) - replicas) // np.maximum(boxes, 1)


class SourceBlocks(NamedTuple):
    """Distinct blocks of the source.

    Attributes:
        distinct: their number.
        replicas: the number of ranks that own each block.
        numbers: the block number of each source position.
        owned: the block number of the rank at each target position; ``distinct`` if the rank is not in the source
            mesh.
    """

    distinct: int
    replicas: int
    numbers: np.ndarray
    owned: np.ndarray


def _intersect(bounds: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the lengths that blocks have in common in each dimension.

    A length is 0 or negative if the blocks do not overlap there.
    """
    lengths: np.ndarray = np.minimum(bounds[1], others[1]) - np.maximum(bounds[0], others[0])
    return lengths


def _volumes(lengths: np.ndarray) -> np.ndarray:
    """Return the number of elements of blocks from their lengths ``[dim, position]``."""
    elements: np.ndarray = np.multiply.reduce(lengths, axis=0)
    return elements


class BusiestCounts(NamedTuple):
    """Largest numbers of any rank: elements received, messages received, and elements sent."""

    most_received: int
    most_messages: int
    most_sent: float


@lru_cache(maxsize=4096)
def busiest_counts(ends: Ends) -> BusiestCounts | ExchangeCounts:
    """Return the counts of the busiest rank, equal to those of :func:`exchange_counts` but often faster.

    >>> from spmdsim.core import Mesh
    >>> mesh = Mesh((256, 256), ("a", "b"))
    >>> busiest_counts(Ends(mesh, (("a",), ()), mesh, ((), ("a",)), (512, 1024)))
    BusiestCounts(most_received=2040, most_messages=255, most_sent=2040.0)
    """
    counts = _nested_counts(ends) if _is_nested(ends) else None
    return counts or exchange_counts(ends)  # ExchangeCounts counts messages and senders on first use.


def _is_nested(ends: Ends) -> bool:
    """Return True if :func:`_nested_counts` applies to an exchange.

    These conditions must hold:

    - Both layouts are on one mesh, and no dimension is empty.
    - In each dimension, all blocks have equal sizes before and after, and one number of blocks divides the other. Of 12
      elements, 2 and 4 blocks are nested; 3 and 4 blocks are not.
    - If a dimension loses axes and gains others, the first gained axis splits the source, or no gained axis does.

    Args:
        ends: the splits before and after.
    """
    have, src, want, dst, shape = ends
    if have != want or 0 in shape:
        return False
    for size, before, after in zip(shape, src, dst):
        old, new = have.axis_size(*before), have.axis_size(*after)
        if size % old or size % new or (old % new and new % old):
            return False
    split_axes = {axis for entry in src for axis in entry}
    for before, after in zip(src, dst):
        count = count_common_axes(before, after)
        added = after[count:]
        if len(before) > count and added and added[0] not in split_axes and not split_axes.isdisjoint(added):
            return False
    return True


def _nested_counts(ends: Ends) -> BusiestCounts | None:
    """Return the counts of an exchange with nested blocks, as :func:`_is_nested` demands.

    In a dimension, the two blocks of a rank are either nested, one in the other, or disjoint. So the elements that the
    busiest rank owns already are a product of lengths, or none. For example, 8 elements in 4 blocks become 2 blocks: a
    target block has 4 elements, of which the rank owns 2, so it receives 2.

    All ranks whose target overlaps a source block request elements of it, except what its own ranks keep. The
    replicas of the block send equally many of these elements.

    Args:
        ends: the splits before and after; that they are nested is not checked.

    Returns:
        The counts. None on meshes of up to ``FEW_RANKS`` (32) ranks if replicas share the sending and keep no elements,
        because their blocks may be cut into unequal numbers of boxes.
    """
    have, src, _, dst, shape = ends
    split_axes = {axis for entry in src for axis in entry}
    target_axes = {axis for entry in dst for axis in entry}
    owned = target_size = source_size = kept_size = messages = box = 1
    for size, before, after in zip(shape, src, dst):
        source_length, target_length = size // have.axis_size(*before), size // have.axis_size(*after)
        count = count_common_axes(before, after)
        removed, added = before[count:], after[count:]
        owned *= 0 if removed and added else min(source_length, target_length)
        source_size *= source_length
        target_size *= target_length
        messages *= max(target_length // source_length, 1)
        box *= min(source_length, target_length)
        if added and not removed:
            kept_size *= target_length * have.axis_size(*[axis for axis in added if axis not in split_axes])
        elif removed and added and not split_axes.isdisjoint(added):
            kept_size = 0
        else:
            kept_size *= source_length
    free_ranks = prod([size for axis, size in have.size_of.items() if axis not in split_axes | target_axes])
    copies = have.size // (have.axis_size(*target_axes) * free_ranks)
    replicas = have.size // (have.axis_size(*split_axes) * free_ranks)
    demand, senders = source_size * copies - kept_size, 1
    if replicas > 1 and have.size <= FEW_RANKS:
        if not kept_size:
            return None
        senders = int(senders_of(replicas, demand // box))
    return BusiestCounts(target_size - owned, (messages - (owned > 0)) * senders, demand / replicas)
