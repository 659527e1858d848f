"""Reduce pending values directly: one rank adds up each element and sends the sum to the ranks that own it.

:mod:`~spmdsim.redistribution.adder_shares` says how many elements each rank adds up. This module turns these shares into boxes
and messages, which all ranks derive without communication. If several ranks own an identical contribution, the rank that
has sent the fewest elements so far sends it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

from spmdsim.core import Bounds, Layout
from spmdsim.core.step import Step, volume
from spmdsim.redistribution.exchange.grid import ranks_of
from spmdsim.redistribution.lower_bound import SumCell, Sums, kept_axes, reduced_axes, sums

Hops = list[tuple[int, int]]


class DirectReduction(Step):
    """A reduction in which one rank adds up each element, and sends it to the ranks that own it."""

    def received_elements(self, rank: int) -> int:
        """Return the number of elements that ``rank`` receives: contributions, partial sums and sums."""
        return self._count(rank, 0)

    def sent_elements(self, rank: int) -> int:
        """Return the number of elements that ``rank`` sends."""
        return self._count(rank, 1)

    def _count(self, rank: int, side: int) -> int:
        """Return the elements that ``rank`` receives (side 0) or sends (side 1)."""
        counts = totals(self.src, self.dst, self.shape)[side]
        return counts[rank] if rank < len(counts) else 0


class Part(NamedTuple):
    """A box that one or two ranks add up.

    Attributes:
        box: bounds in the global tensor.
        adders: ``(rank, ranks whose contributions it adds)``. The first adder passes its sum on to the second one, which
            adds its own contribution. The last adder owns the result.
        wanting: the ranks that own the box in the end.
    """

    box: Bounds
    adders: tuple[tuple[int, tuple[int, ...]], ...]
    wanting: tuple[int, ...]

    @property
    def count(self) -> int:  # type: ignore[override]
        """Number of elements."""
        return volume(self.box)

    @property
    def last(self) -> int:
        """The rank that owns the result first."""
        return self.adders[-1][0]

    @property
    def terms(self) -> int:
        """Number of contributions."""
        return sum(len(ranks) for _, ranks in self.adders)

    @property
    def contributions(self) -> Hops:
        """Messages ``(from, to)`` with contributions."""
        return [(rank, adder) for adder, ranks in self.adders for rank in ranks if rank != adder]

    @property
    def passed(self) -> Hops:
        """Messages ``(from, to)`` with partial sums."""
        return [(one, other) for (one, _), (other, _) in pairwise(self.adders)]

    @property
    def results(self) -> Hops:
        """Messages ``(from, to)`` with the result."""
        return [(self.last, rank) for rank in self.wanting if rank != self.last]


@lru_cache(maxsize=512)
def parts(src: Layout, dst: Layout, shape: tuple[int, ...]) -> tuple[Part, ...]:
    """Return the boxes of a direct reduction with their messages. The layouts may be on any two meshes.

    >>> from spmdsim.core import Mesh
    >>> one, other = Mesh((2,), ("a",)), Mesh((2,), ("b",), ranks=(2, 3))
    >>> for part in parts(one(None, partial="a"), other("b"), (4,)):
    ...     print(part.box, part.contributions, part.results)
    ((0, 2),) [(1, 0)] [(0, 2)]
    ((2, 4),) [(0, 1)] [(1, 3)]
    """
    problem = sums(src, dst, shape, kept_axes(src, dst), reduced_axes(src, dst))
    sent = dict.fromkeys(problem.ranks, 0)
    assigned = []
    for cell, box, adder in _assign_boxes(problem):
        adders = _order_adders(cell, adder, sent)
        assigned.append((cell, box, adders))
        for rank in adders[:-1]:
            sent[rank] += volume(box)
        sent[adders[-1]] += volume(box) * sum(rank != adders[-1] for rank in cell.wanting)
    assigned.sort(key=lambda item: max(map(len, item[0].holders)))  # boxes whose senders are given come first
    return tuple([_part(*item, sent) for item in assigned])


def rounds(summed: tuple[Part, ...]) -> list[list[tuple[int, int, int]]]:
    """Return the messages of each round, ``(from, to, number of the part)``: contributions, partial sums, results."""
    longest = max([len(part.adders) for part in summed], default=1) - 1
    messages: list[list[tuple[int, int, int]]] = [[] for _ in range(longest + 2)]
    for number, part in enumerate(summed):
        messages[0] += [(*hop, number) for hop in part.contributions]
        for place, hop in enumerate(part.passed):
            messages[1 + place].append((*hop, number))
        messages[-1] += [(*hop, number) for hop in part.results]
    return messages


@lru_cache(maxsize=1024)
def totals(src: Layout, dst: Layout, shape: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """Return ``(received, sent)``: the elements that each rank number receives and sends in a direct reduction."""
    size = 1 + max(int(ranks_of(one.mesh).rank.max()) for one in (src, dst))
    received, sent = [0] * size, [0] * size
    for part in parts(src, dst, shape):
        count = part.count
        for giver, taker in (*part.contributions, *part.passed, *part.results):
            received[taker] += count
            sent[giver] += count
    return received, sent


def most_received(src: Layout, dst: Layout, shape: tuple[int, ...]) -> int:
    """Return the elements that the busiest rank receives: the largest of :func:`totals`, without the messages."""
    return sums(src, dst, shape, kept_axes(src, dst), reduced_axes(src, dst)).most_received


def most_messages(src: Layout, dst: Layout, shape: tuple[int, ...]) -> int:
    """Return the number of messages that the busiest rank receives: one per peer and round."""
    messages = rounds(parts(src, dst, shape))
    hops = {(k, giver, taker) for k, hops in enumerate(messages) for giver, taker, _ in hops}
    return max(Counter(taker for _, _, taker in hops).values(), default=0)


def peers(src: Layout, dst: Layout, shape: tuple[int, ...], rank: int) -> list[tuple[int, int]]:
    """Return ``(peer, elements)`` for each rank from which ``rank`` receives in a direct reduction."""
    counts: Counter[int] = Counter()
    summed = parts(src, dst, shape)
    for hops in rounds(summed):
        for giver, taker, number in hops:
            if taker == rank:
                counts[giver] += summed[number].count
    return sorted(counts.items())


def scratch(src: Layout, dst: Layout, shape: tuple[int, ...], rank: int) -> int:
    """Return the largest number of elements in a rank's buffers: packed, received and added up, round by round.

    The target shard is allocated when the last round has been received.
    """
    summed = parts(src, dst, shape)
    added = sum(part.count for part in summed for adder, _ in part.adders if rank == adder)
    packed, landed = (
        [sum(summed[hop[2]].count for hop in hops if hop[side] == rank) for hops in rounds(summed)]
        for side in (0, 1)
    )
    after = volume(dst.bounds(shape, rank)) if rank in dst.mesh else 0
    later = max(map(sum, zip(packed[1:], landed[1:])))
    return max(landed[0] + max(packed[0], added) - after, added + later - after, added + landed[-1])


# -- boxes and adders ---------------------------------------------------------------------------------------


def _assign_boxes(problem: Sums) -> Iterator[tuple[SumCell, Bounds, int]]:
    """Yield ``(cell, box, adder)``: each rank's share of a group of cells, as boxes in row-major order."""
    for cells, counts in zip(problem.groups, problem.shares.tolist()):
        stops = list(accumulate(counts))
        before = 0
        for cell in cells:
            after = before + volume(cell.box)
            for rank, stop, count in zip(problem.ranks, stops, counts):
                first, last = max(before, stop - count), min(after, stop)
                for box in _boxes(cell.box, first - before, last - before):
                    yield cell, box, rank
            before = after


def _order_adders(cell: SumCell, adder: int, sent: dict[int, int]) -> list[int]:
    """Return the adder, and after it the rank that adds its own contribution last, if there is such a rank."""
    finishers = cell.finishers(adder)
    if not finishers:
        return [adder]
    finisher = min(finishers, key=lambda rank: (sent[rank], rank))
    # With two contributions, an adder that owns one of them would have nothing to add.
    return [finisher] if adder in cell.own and len(cell.holders) == 2 else [adder, finisher]


def _part(cell: SumCell, box: Bounds, order: list[int], sent: dict[int, int]) -> Part:
    """Return the part of a box. The first adder gets all contributions but its own and the last adder's."""
    owned = {cell.own[rank]: rank for rank in order if rank in cell.own}
    terms = []
    for term, holders in enumerate(cell.holders):
        if term not in owned:
            giver = min(holders, key=lambda rank: (sent[rank], rank))
            sent[giver] += volume(box)
            terms.append((term, giver))
    if order[0] in cell.own:
        terms.append((cell.own[order[0]], order[0]))
    adders = [
        (order[0], tuple([giver for _, giver in sorted(terms)])),
        *[(rank, (rank,)) for rank in order[1:]],
    ]
    return Part(box, tuple(adders), cell.wanting)


def _boxes(box: Bounds, first: int, last: int) -> list[Bounds]:
    """Return the elements ``first`` to ``last`` of a box in row-major order as boxes.

    >>> _boxes(((0, 3), (0, 4)), 2, 8)
    [((0, 1), (2, 4)), ((1, 2), (0, 4))]
    """
    if first >= last:
        return []
    start, rest = box[0][0], box[1:]
    row = volume(rest)
    top, bottom = -(-first // row), last // row
    if top > bottom:  # within one row
        inner = _boxes(rest, first - bottom * row, last - bottom * row)
        return [((start + bottom, start + bottom + 1), *one) for one in inner]
    boxes = []
    if first < top * row:
        inner = _boxes(rest, first - (top - 1) * row, row)
        boxes += [((start + top - 1, start + top), *one) for one in inner]
    if top < bottom:
        boxes.append(((start + top, start + bottom), *rest))
    if bottom * row < last:
        inner = _boxes(rest, 0, last - bottom * row)
        boxes += [((start + bottom, start + bottom + 1), *one) for one in inner]
    return boxes
