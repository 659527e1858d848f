"""The direct reduction: elements are added up where that leaves the busiest rank as little as possible to receive.

The counterpart of the direct exchange for pending sums. A layout in between would give every rank one piece of equal size;
the least often needs others. Which rank adds up how much says :mod:`~spmdsim.redistribution.bound.lower_bound`; here it becomes
boxes, and messages that all ranks derive alike. What does not come out in whole elements is shared: several ranks add up
a part of an element's contributions each and pass the sum on, so that receptions are dealt out one by one.
Of several ranks with the same contribution, the one sends that has sent the least so far.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from spmdsim.core import Bounds, Layout
from spmdsim.core.step import volume
from spmdsim.redistribution.bound.adder_shares import TINY
from spmdsim.redistribution.bound.lower_bound import SumCell, Sums, kept_axes, reduced_axes, sums
from spmdsim.redistribution.grid import ranks_of
from spmdsim.redistribution.steps.counted_step import CountedStep

#: How many elements more of every share are dealt out one by one, until the busiest rank has no more than the least.
LOOSE = (0, 1, 3)

Hops = list[tuple[int, int]]


class DirectReduction(CountedStep):
    """A reduction in which every element is added up at one rank, or at a few in turn, and sent to the ranks that own it."""

    def received_elements(self, rank: int) -> int:
        """Return the number of elements that ``rank`` receives: to add them up, or sums of them."""
        return self._count(rank, 0)

    def sent_elements(self, rank: int) -> int:
        """Return the number of elements that ``rank`` sends."""
        return self._count(rank, 1)

    @property
    def received_by_position(self) -> np.ndarray:
        """Elements that each rank number receives: ranks of the source mesh receive contributions, too."""
        return np.array(totals(self.src, self.dst, self.shape)[0])

    @property
    def most_received(self) -> int:
        """Elements that the busiest rank receives, which are known before it is known from which ranks."""
        return _in_whole(_problem(self.src, self.dst, self.shape))[0]

    @property
    def most_moved(self) -> int:
        """Elements that the busiest rank receives or sends."""
        return max(self.most_received, *totals(self.src, self.dst, self.shape)[1])

    @property
    def most_messages(self) -> int:
        """Messages that the busiest rank receives, one per peer and round."""
        rounds_ = enumerate(rounds(parts(self.src, self.dst, self.shape)))
        messages = {(number, giver, taker) for number, hops in rounds_ for giver, taker, _ in hops}
        return max(Counter(taker for *_, taker in messages).values(), default=0)

    def _count(self, rank: int, side: int) -> int:
        """Return the elements that ``rank`` receives (side 0) or sends (side 1)."""
        counts = totals(self.src, self.dst, self.shape)[side]
        return counts[rank] if rank < len(counts) else 0


class Part(NamedTuple):
    """A box that is added up in one place after the other, and the ranks that hold the result in the end.

    The adders, in order, each with the ranks whose contributions it adds, pass the sum on; the last one has the result.
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
        """The rank that has the result first."""
        return self.adders[-1][0]

    @property
    def terms(self) -> int:
        """How many contributions there are."""
        return sum(len(ranks) for _, ranks in self.adders)

    @property
    def contributions(self) -> Hops:
        """Who sends the box as it is to whom."""
        return [(rank, adder) for adder, ranks in self.adders for rank in ranks if rank != adder]

    @property
    def passed(self) -> Hops:
        """Who passes a sum on to whom, one after the other."""
        return [(one, other) for (one, _), (other, _) in pairwise(self.adders)]

    @property
    def results(self) -> Hops:
        """Who sends the result to whom."""
        return [(self.last, rank) for rank in self.wanting if rank != self.last]


@lru_cache(maxsize=512)
def parts(src: Layout, dst: Layout, shape: tuple[int, ...]) -> tuple[Part, ...]:
    """Return the boxes of a reduction with the ranks that add them up, on any mesh.

    >>> from spmdsim.core import Mesh
    >>> one, other = Mesh((2,), ("a",)), Mesh((2,), ("b",), ranks=(2, 3))
    >>> for part in parts(one(None, partial="a"), other("b"), (4,)):
    ...     print(part.box, part.contributions, part.results)
    ((0, 2),) [(1, 0)] [(0, 2)]
    ((2, 4),) [(0, 1)] [(1, 3)]
    """
    problem = _problem(src, dst, shape)
    sent = dict.fromkeys(problem.ranks, 0)
    begun = []
    for cell, box, receptions in _dealt(problem):
        order = _order(cell, receptions, sent)
        begun.append((cell, order, box, receptions))
        for giver in order[:-1]:
            sent[giver] += volume(box)
        sent[order[-1]] += volume(box) * sum(rank != order[-1] for rank in cell.wanting)
    begun.sort(key=lambda item: max(map(len, item[0].holders)))  # those that have no choice first
    return tuple([_part(*item, sent) for item in begun])


def rounds(summed: tuple[Part, ...]) -> list[list[tuple[int, int, int]]]:
    """Return the messages of each round: ``(from, to, number of the part)``."""
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
    """Return the elements that each rank number receives and sends in a direct reduction."""
    size = 1 + max(int(ranks_of(one.mesh).rank.max()) for one in (src, dst))
    received, sent = [0] * size, [0] * size
    for part in parts(src, dst, shape):
        count = part.count
        for giver, taker in (*part.contributions, *part.passed, *part.results):
            received[taker] += count
            sent[giver] += count
    return received, sent


def peers(src: Layout, dst: Layout, shape: tuple[int, ...], rank: int) -> list[tuple[int, int]]:
    """Return ``(peer, elements)`` for each rank from which ``rank`` receives in a direct reduction."""
    counts: Counter[int] = Counter()
    summed = parts(src, dst, shape)
    for some in rounds(summed):
        for giver, taker, number in some:
            if taker == rank:
                counts[giver] += summed[number].count
    return sorted(counts.items())


def scratch(src: Layout, dst: Layout, shape: tuple[int, ...], rank: int) -> int:
    """Return the peak number of elements in the buffers of a rank: packed, received and added up.

    The shard after it is there only when the last round has landed.
    """
    summed = parts(src, dst, shape)
    added = sum(part.count for part in summed for adder, _ in part.adders if rank == adder)
    packed, landed = (
        [sum(summed[hop[2]].count for hop in some if hop[side] == rank) for some in rounds(summed)]
        for side in (0, 1)
    )
    after = volume(dst.bounds(shape, rank)) if rank in dst.mesh else 0
    later = max(map(sum, zip(packed[1:], landed[1:])))
    return max(landed[0] + max(packed[0], added) - after, added + later - after, added + landed[-1])


# -- whole elements -----------------------------------------------------------------------------------------


def _dealt(problem: Sums) -> Iterator[tuple[SumCell, Bounds, dict[int, int]]]:
    """Yield boxes with their adders and the number of receptions of each adder."""
    _, whole, rest = _in_whole(problem)
    for cells, counts, extras, singles in zip(problem.groups, whole, problem.extras.tolist(), rest):
        stops = list(accumulate(counts))
        before = 0
        for cell in cells:
            after = before + volume(cell.box)
            for rank, stop, count, extra in zip(problem.ranks, stops, counts, extras):
                first, last = max(before, stop - count), min(after, stop)
                for box in _boxes(cell.box, first - before, last - before):
                    yield cell, box, {rank: extra}
            for place in range(max(before, stops[-1]), after):
                for box in _boxes(cell.box, place - before, place - before + 1):
                    yield cell, box, singles[place - stops[-1]]
            before = after


class Single(NamedTuple):
    """One element that is not in the whole shares: where it lies, and the ranks that can add up a part of it.

    These need no reception more in all. ``receptions``: how many each has, but for the one that a rank which wants the result
    has anyway.
    """

    cell: SumCell
    inside: tuple[int, ...]
    receptions: dict[int, int]

    def open_to(self, rank: int, gone: int = -1) -> bool:
        """Return True if ``rank`` can take another reception, perhaps instead of the rank ``gone``."""
        left: Collection[int] = self.receptions
        if self.receptions.get(gone) == 1:
            left = [one for one in self.receptions if one != gone]
        return rank in left or self.cell.joins(rank, left)

    def more(self, rank: int, count: int) -> None:
        """Give a rank so many receptions more."""
        self.receptions[rank] = self.receptions.get(rank, 0) + count
        if not self.receptions[rank]:
            del self.receptions[rank]

    def deal(self, load: dict[int, int], count: int) -> None:
        """Deal out receptions, each to the rank that has the least."""
        for _ in range(count):
            ranks = sorted([(load[one], one not in self.receptions, one) for one in self.inside])
            rank = next(one for *_, one in ranks if self.open_to(one))
            self.more(rank, 1)
            load[rank] += 1

    def take_back(self, load: dict[int, int]) -> None:
        """Take all receptions back."""
        for rank, count in self.receptions.items():
            load[rank] -= count
        self.receptions.clear()


def _problem(src: Layout, dst: Layout, shape: tuple[int, ...]) -> Sums:
    """Return the elements of a reduction by the ranks that own and want them."""
    return sums(src, dst, shape, kept_axes(src, dst), reduced_axes(src, dst))


@lru_cache(maxsize=512)
def _in_whole(problem: Sums) -> tuple[int, list[list[int]], list[list[dict[int, int]]]]:
    """Return the busiest rank's receptions, the shares in whole elements, and the single elements that remain."""
    extras = problem.extras
    limit = int(np.ceil((problem.want + (problem.shares * extras).sum(axis=0)).max() - 1e-6))
    best: tuple[int, list[list[int]], list[list[Single]]] | None = None
    for loose in LOOSE:
        whole = np.maximum(np.floor(problem.shares + TINY).astype(np.int64) - loose, 0)
        load = dict(zip(problem.ranks, (problem.want + (whole * extras).sum(axis=0)).tolist()))
        left = (problem.volumes - whole.sum(axis=1)).tolist()
        singles = [
            _singles(cells, count, inside)
            for cells, count, inside in zip(problem.groups, left, problem.inside)
        ]
        for single in sorted([one for some in singles for one in some], key=lambda one: len(one.inside)):
            single.deal(load, single.cell.fewest)
        every = [single for some in singles for single in some]
        while max(load.values()) > limit and (
            _relieve(every, load, limit) or any(_put_outside(single, load, limit) for single in every)
        ):
            pass
        if best is None or max(load.values()) < best[0]:
            best = max(load.values()), whole.tolist(), singles
        if best[0] <= limit:
            break
    assert best is not None  # for the type checker
    return best[0], best[1], [[one.receptions or {one.inside[0]: 0} for one in some] for some in best[2]]


def _singles(cells: list[SumCell], count: int, inside: Sequence[int]) -> list[Single]:
    """Return the last ``count`` elements of cells that equal ranks can add up."""
    singles: list[Single] = []
    for cell in reversed(cells):
        some = min(count - len(singles), volume(cell.box))
        if some:
            singles += [Single(cell, tuple(inside), {}) for _ in range(some)]
    return singles[::-1]


def _put_outside(single: Single, load: dict[int, int], limit: int) -> bool:
    """Relieve busy ranks: another one takes part, although that takes a reception more in all; whether it helps."""
    if not any(load[rank] > limit for rank in single.receptions) or {*single.receptions} - {*single.inside}:
        return False
    before, first = dict(load), dict(single.receptions)
    single.take_back(load)
    for rank in sorted(load, key=lambda one: (load[one], one)):
        count = min(limit - load[rank], single.cell.fewest + 1)
        if rank in single.inside or count < min(2, single.cell.fewest + 1):
            continue
        single.more(rank, count)
        load[rank] += count
        single.deal(load, single.cell.fewest + 1 - count)
        if _excess(load, limit) < _excess(before, limit):
            return True
        single.take_back(load)
    load.update(before)
    single.receptions.update(first)
    return False


def _excess(load: dict[int, int], limit: int) -> int:
    return sum(max(0, count - limit) for count in load.values())


def _relieve(singles: list[Single], load: dict[int, int], limit: int) -> bool:
    """Pass a reception on from the busiest rank, from rank to rank until one has room; whether there is such a chain."""
    busiest = max(load, key=lambda rank: load[rank])
    chains: dict[int, list[tuple[int, Single, int]]] = {busiest: []}
    queue = [busiest]
    for rank in queue:
        used = [id(single) for _, single, _ in chains[rank]]
        for single in singles:
            if rank not in single.receptions or rank not in single.inside or id(single) in used:
                continue
            for other in single.inside:
                if other in chains or not single.open_to(other, rank):
                    continue
                chains[other] = [*chains[rank], (rank, single, other)]
                queue.append(other)
                if load[other] < limit:
                    for giver, passed, taker in chains[other]:
                        passed.more(giver, -1)
                        passed.more(taker, 1)
                    load[busiest] -= 1
                    load[other] += 1
                    return True
    return False


def _order(cell: SumCell, receptions: dict[int, int], sent: dict[int, int]) -> list[int]:
    """Return the adders in order. A rank that can finish is the last one."""
    order = sorted(
        receptions, key=lambda rank: (rank in cell.wanting, rank in cell.wanting and rank in cell.own, rank)
    )
    if len(order) == 1 and not receptions[order[0]] and order[0] in cell.own:
        order = []  # it has nothing to add but its own
    finishers = cell.finishers(receptions)
    if finishers:
        order.append(min(finishers, key=lambda rank: (sent[rank], rank)))
    return order or list(receptions)


def _part(
    cell: SumCell, order: list[int], box: Bounds, receptions: dict[int, int], sent: dict[int, int]
) -> Part:
    """Return a part. Of several ranks with one contribution, the rank that has sent the least sends it."""
    own = {cell.own[rank]: rank for rank in reversed(order) if rank in cell.own}
    left = [term for term in range(len(cell.holders)) if term not in own]
    adders = []
    for number, rank in enumerate(order):
        count = len(left)
        if number < len(order) - 1:
            finishes = number == len(order) - 2 and receptions.get(order[-1]) is None
            count = len(left) if finishes else receptions[rank] - (number > 0)
        terms = [] if own.get(cell.own.get(rank, -1)) != rank else [(cell.own[rank], rank)]
        for term in left[:count]:
            giver = min(cell.holders[term], key=lambda one: (sent[one], one))
            sent[giver] += volume(box)
            terms.append((term, giver))
        del left[:count]
        adders.append((rank, tuple([giver for _, giver in sorted(terms)])))
    return Part(box, tuple(adders), cell.wanting)


def _boxes(box: Bounds, first: int, last: int) -> list[Bounds]:
    """Return the elements ``first`` to ``last`` of a box in row-major order, as boxes.

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
