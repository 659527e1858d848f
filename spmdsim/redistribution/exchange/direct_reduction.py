"""The direct reduction: add up each element at a rank that keeps the busiest rank's receptions low.

It is the counterpart of the direct exchange for pending sums. A reduce_scatter would give every rank an equal share of
the adding; the optimum often needs other shares. :mod:`~spmdsim.redistribution.bound.lower_bound` computes how much
each rank adds; this module turns the shares into boxes and messages, equally on all ranks. The elements that the
shares leave over are dealt out one by one: several ranks add up some of an element's addends each and pass the sum on.
Of several ranks with the same addend, the rank that has sent the least so far sends it.

An *addend* of an element is its value on the ranks with one combination of coordinates on the reduced axes.
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

#: Numbers of elements by which every share is reduced. More elements are then dealt out one by one. The numbers are tried in order
#: until the busiest rank receives no more than the fractional shares predict.
LOOSE = (0, 1, 3)

Hops = list[tuple[int, int]]


class DirectReduction(CountedStep):
    """Reduction that adds up every element at one rank, or at a few in turn, and sends it to its owners."""

    def received_elements(self, rank: int) -> int:
        """Return the number of elements that ``rank`` receives: addends, partial sums and results."""
        return self._count(rank, 0)

    def sent_elements(self, rank: int) -> int:
        """Return the number of elements that ``rank`` sends."""
        return self._count(rank, 1)

    @property
    def received_by_position(self) -> np.ndarray:
        """Elements that each rank number receives; ranks of the source mesh receive addends, too."""
        return np.array(count_totals(self.src, self.dst, self.shape)[0])

    @property
    def most_received(self) -> int:
        """Elements that the busiest rank receives. Computed without the list of messages."""
        return _assign_elements(_reduction_sums(self.src, self.dst, self.shape))[0]

    @property
    def most_moved(self) -> int:
        """Elements that the busiest rank receives or sends."""
        return max(self.most_received, *count_totals(self.src, self.dst, self.shape)[1])

    @property
    def most_messages(self) -> int:
        """Messages that the busiest rank receives; several boxes from a peer in one round are one message."""
        numbered_rounds = enumerate(list_rounds(reduction_parts(self.src, self.dst, self.shape)))
        messages = {(number, giver, taker) for number, hops in numbered_rounds for giver, taker, _ in hops}
        return max(Counter(taker for *_, taker in messages).values(), default=0)

    def _count(self, rank: int, side: int) -> int:
        """Return the elements that ``rank`` receives (side 0) or sends (side 1)."""
        counts = count_totals(self.src, self.dst, self.shape)[side]
        return counts[rank] if rank < len(counts) else 0


class Part(NamedTuple):
    """Box that is added up at one rank after the other.

    Attributes:
        box: the box of the global tensor.
        adders: the ranks that add, in order, each with the ranks whose addends it adds. Each passes its sum on to the
            next; the last one has the result.
        wanting: the ranks that own the result in the end.
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
        """Rank that has the result first."""
        return self.adders[-1][0]

    @property
    def terms(self) -> int:
        """Number of addends."""
        return sum(len(ranks) for _, ranks in self.adders)

    @property
    def contributions(self) -> Hops:
        """Messages with addends, as ``(sender, receiver)``."""
        return [(rank, adder) for adder, ranks in self.adders for rank in ranks if rank != adder]

    @property
    def forwarded(self) -> Hops:
        """Messages with sums, as ``(sender, receiver)``, one after the other."""
        return [(adder, next_adder) for (adder, _), (next_adder, _) in pairwise(self.adders)]

    @property
    def results(self) -> Hops:
        """Messages with the result, as ``(sender, receiver)``."""
        return [(self.last, rank) for rank in self.wanting if rank != self.last]


@lru_cache(maxsize=512)
def reduction_parts(src: Layout, dst: Layout, shape: tuple[int, ...]) -> tuple[Part, ...]:
    """Return the boxes of a direct reduction, each with the ranks that add it up.

    The boxes cover each element of each pending sum once. The shares of the ranks keep the busiest rank's receptions
    low. The boxes whose addends have the fewest owners come first, so that the others can avoid busy senders. Cached
    by value; equal on all ranks.

    Args:
        src: the layout before, with the pending values.
        dst: the layout after; it may be on another mesh.
        shape: the global shape.

    >>> from spmdsim.core import Mesh
    >>> one, other = Mesh((2,), ("a",)), Mesh((2,), ("b",), ranks=(2, 3))
    >>> # Rank 0 adds elements 0 and 1: rank 1 sends it addends (1, 0), and it sends the sums to rank 2.
    >>> for part in reduction_parts(one(None, partial="a"), other("b"), (4,)):
    ...     print(part.box, part.contributions, part.results)
    ((0, 2),) [(1, 0)] [(0, 2)]
    ((2, 4),) [(0, 1)] [(1, 3)]
    """
    problem = _reduction_sums(src, dst, shape)
    sent = dict.fromkeys(problem.ranks, 0)
    dealt = []
    for cell, box, receptions in _deal_out(problem):
        order = _order_adders(cell, receptions, sent)
        dealt.append((cell, order, box, receptions))
        for giver in order[:-1]:
            sent[giver] += volume(box)
        sent[order[-1]] += volume(box) * sum(rank != order[-1] for rank in cell.wanting)
    dealt.sort(key=lambda item: max(map(len, item[0].owners)))  # Addends with few owners come first.
    return tuple([_build_part(*item, sent) for item in dealt])


def list_rounds(summed: tuple[Part, ...]) -> list[list[tuple[int, int, int]]]:
    """Return the messages of each round as ``(sender, receiver, index in summed)``.

    A part is a box that one or several ranks, its adders, add up. The first round sends each addend to the adder that
    adds it. The last round sends the results from the last adders to the ranks that want them. Both may be empty. A
    part with several adders passes its sum along them, one hop per round in between. So the number of rounds is two
    plus the largest number of hops.

    Args:
        summed: the parts of :func:`reduction_parts`.
    """
    most_forwards = max([len(share.adders) for share in summed], default=1) - 1
    messages: list[list[tuple[int, int, int]]] = [[] for _ in range(most_forwards + 2)]
    for number, share in enumerate(summed):
        messages[0] += [(*hop, number) for hop in share.contributions]
        for position, hop in enumerate(share.forwarded):
            messages[1 + position].append((*hop, number))
        messages[-1] += [(*hop, number) for hop in share.results]
    return messages


@lru_cache(maxsize=1024)
def count_totals(src: Layout, dst: Layout, shape: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """Return the elements that each rank receives and sends in a direct reduction.

    The counts are of three kinds: addends that a rank sends to the rank that adds them, partial sums that are
    forwarded, and results that are sent to their owners. Elements that stay on a rank are not counted. The result is
    cached by the layouts and the shape, so the caller must not change the lists.

    Args:
        src: the layout before.
        dst: the layout after.
        shape: the global shape.

    Returns:
        ``(received, sent)``, two lists indexed by rank number, up to the largest rank of both meshes.
    """
    size = 1 + max(int(ranks_of(layout.mesh).rank.max()) for layout in (src, dst))
    received, sent = [0] * size, [0] * size
    for share in reduction_parts(src, dst, shape):
        for giver, taker in (*share.contributions, *share.forwarded, *share.results):
            received[taker] += share.count
            sent[giver] += share.count
    return received, sent


def count_by_peer(src: Layout, dst: Layout, shape: tuple[int, ...], rank: int) -> list[tuple[int, int]]:
    """Return ``(peer, elements)`` for each rank from which ``rank`` receives, sorted by peer.

    Args:
        src: the layout before.
        dst: the layout after.
        shape: the global shape.
        rank: the receiver; the list is empty if it receives nothing.
    """
    counts: Counter[int] = Counter()
    summed = reduction_parts(src, dst, shape)
    for messages in list_rounds(summed):
        for giver, taker, number in messages:
            if taker == rank:
                counts[giver] += summed[number].count
    return sorted(counts.items())


def peak_buffer_elements(src: Layout, dst: Layout, shape: tuple[int, ...], rank: int) -> int:
    """Return the peak number of packed, received and summed elements in buffers of a rank.

    The shard after the step is not counted. Its memory is allocated only when the last round has arrived, so its size
    t is subtracted before. Let s be the elements that the rank adds up, and p and r those that it packs and receives
    in a round of messages. The peak is the largest of

    * first round: r + max(p, s) - t;
    * each later round: s + p + r - t;
    * the end of the last round: s + r.

    For example, 3 ranks reduce 12 elements to shards of 4. In the first round a rank packs 8 and receives 8, so the
    peak is 8 + max(8, 4) - 4 = 12.

    Args:
        src: the layout before.
        dst: the layout after.
        shape: the global shape.
        rank: the rank.
    """
    summed = reduction_parts(src, dst, shape)
    added = sum(share.count for share in summed for adder, _ in share.adders if rank == adder)
    packed, received = [], []
    for messages in list_rounds(summed):
        packed.append(sum(summed[number].count for sender, _, number in messages if sender == rank))
        received.append(sum(summed[number].count for _, receiver, number in messages if receiver == rank))
    shard_after = volume(dst.bounds(shape, rank)) if rank in dst.mesh else 0
    first_round = received[0] + max(packed[0], added) - shard_after
    later_rounds = added + max(map(sum, zip(packed[1:], received[1:]))) - shard_after
    return max(first_round, later_rounds, added + received[-1])


# -- whole elements -----------------------------------------------------------------------------------------


def _deal_out(problem: Sums) -> Iterator[tuple[SumCell, Bounds, dict[int, int]]]:
    """Yield the boxes of a reduction with their adders, as ``(cell, box, receptions)``.

    A cell is a box of elements with equal owners; a group has the cells whose elements cost each rank equally much. The
    elements of a group are numbered in row-major order, cell after cell, and dealt out in two phases:

    1. Each rank gets as many consecutive elements as its share, cut into boxes that are inside one cell. Each box has
       one adder.
    2. The remaining elements are those that :func:`_assign_elements` dealt out one by one. Each is a box of its own,
       and may have several adders.

    For example, shares of 4 and 5 in a group of 10 elements give elements 0-3 to the first rank and 4-8 to the second;
    element 9 is dealt out by itself. ``receptions`` has the receptions per element of each adder, by rank.

    Args:
        problem: the elements of the reduction, grouped by owners.
    """
    _, shares, single_receptions = _assign_elements(problem)
    for cells, counts, extras, singles in zip(
        problem.groups, shares, problem.extras.tolist(), single_receptions
    ):
        stops = list(
            accumulate(counts)
        )  # A rank's share are the elements from stop - count to stop of the group.
        before = 0
        for cell in cells:
            after = before + volume(cell.box)
            for rank, stop, count, extra in zip(problem.ranks, stops, counts, extras):
                first, last = max(before, stop - count), min(after, stop)
                for box in _cut_boxes(cell.box, first - before, last - before):
                    yield cell, box, {rank: extra}
            for index in range(max(before, stops[-1]), after):
                for box in _cut_boxes(cell.box, index - before, index - before + 1):
                    yield cell, box, singles[index - stops[-1]]
            before = after


class Single(NamedTuple):
    """Element that is not part of a rank's share.

    Attributes:
        cell: the cell that contains it.
        inside: the ranks that can be adders without raising the total number of receptions.
        receptions: the number of addends and sums that each adder receives. The reception of the result is not
            counted.
    """

    cell: SumCell
    inside: tuple[int, ...]
    receptions: dict[int, int]

    def can_take(self, rank: int, gone: int = -1) -> bool:
        """Return True if ``rank`` can take another reception.

        If the rank ``gone`` is given, ``rank`` takes a reception over from it.
        """
        remaining: Collection[int] = self.receptions
        if self.receptions.get(gone) == 1:
            remaining = [adder for adder in self.receptions if adder != gone]
        return rank in remaining or self.cell.joins(rank, remaining)

    def add(self, rank: int, count: int) -> None:
        """Add ``count`` receptions to a rank, which may be negative; a rank without receptions is removed."""
        self.receptions[rank] = self.receptions.get(rank, 0) + count
        if not self.receptions[rank]:
            del self.receptions[rank]

    def deal(self, load: dict[int, int], count: int) -> None:
        """Assign receptions one by one, each to the rank of ``inside`` with the smallest load.

        Ranks that cannot take another reception are skipped; one rank must be able to. Of equal loads, an adder of
        the element wins, then the lowest rank.

        Args:
            load: the number of receptions by rank; updated.
            count: the number of receptions.
        """
        for _ in range(count):
            by_load = sorted([(load[rank], rank not in self.receptions, rank) for rank in self.inside])
            rank = next(candidate for *_, candidate in by_load if self.can_take(candidate))
            self.add(rank, 1)
            load[rank] += 1

    def clear(self, load: dict[int, int]) -> None:
        """Remove all receptions and subtract them from ``load``."""
        for rank, count in self.receptions.items():
            load[rank] -= count
        self.receptions.clear()


def _reduction_sums(src: Layout, dst: Layout, shape: tuple[int, ...]) -> Sums:
    """Return the elements of a reduction, grouped by the ranks that own and want them."""
    return sums(src, dst, shape, kept_axes(src, dst), reduced_axes(src, dst))


@lru_cache(maxsize=512)
def _assign_elements(problem: Sums) -> tuple[int, list[list[int]], list[list[dict[int, int]]]]:
    """Round the fractional shares of a reduction to whole elements; keep the largest load low.

    :func:`_round_shares` does this for each number of ``LOOSE`` (0, 1, 3), in order, until the busiest rank receives
    no more than the fractional shares predict. If that never happens, the number whose busiest rank receives least is
    taken. Cached.

    Args:
        problem: the elements of the reduction, grouped by owners.

    Returns:
        ``(most, shares, receptions)``: the receptions of the busiest rank; the shares ``[group][rank]``; and for each
        group one dict ``{rank: number of addends and sums that it receives}`` per element that is dealt out singly. An
        element without receptions has ``{rank: 0}`` for the first rank that can add it.
    """
    predicted_load = problem.want + (problem.shares * problem.extras).sum(axis=0)
    least = int(np.ceil(predicted_load.max() - 1e-6))
    best: tuple[int, list[list[int]], list[list[Single]]] | None = None
    for withheld in LOOSE:
        rounded = _round_shares(problem, withheld, least)
        if best is None or rounded[0] < best[0]:
            best = rounded
        if best[0] <= least:
            break
    assert best is not None  # for the type checker
    most, shares, singles = best
    return (
        most,
        shares,
        [[single.receptions or {single.inside[0]: 0} for single in group] for group in singles],
    )


def _round_shares(
    problem: Sums, withheld: int, least: int
) -> tuple[int, list[list[int]], list[list[Single]]]:
    """Round fractional shares down, and deal out the elements that remain one by one.

    1. Each share is rounded down and reduced by ``withheld``, but not below 0.
    2. The elements that remain are dealt out one by one, first those that the fewest ranks can add at the lowest cost.
       Several ranks may share such an element: each adds some of the addends.
    3. Receptions move from busy ranks to others (:func:`_relieve`, :func:`_put_outside`), until no rank receives more
       than ``least`` or no move helps.

    Args:
        problem: the elements of the reduction, grouped by owners.
        withheld: the number of elements by which every rounded share is reduced.
        least: the receptions of the busiest rank that the fractional shares predict.

    Returns:
        ``(most, shares, singles)``: the receptions of the busiest rank; the shares ``[group][rank]``; and for each
        group the elements that are dealt out singly.
    """
    shares = np.maximum(np.floor(problem.shares + TINY).astype(np.int64) - withheld, 0)
    load = dict(zip(problem.ranks, (problem.want + (shares * problem.extras).sum(axis=0)).tolist()))
    remaining = (problem.volumes - shares.sum(axis=1)).tolist()
    singles = [
        _singles(cells, count, inside)
        for cells, count, inside in zip(problem.groups, remaining, problem.inside)
    ]
    all_singles = [single for group_singles in singles for single in group_singles]
    for single in sorted(all_singles, key=lambda single: len(single.inside)):
        single.deal(load, single.cell.fewest)
    while max(load.values()) > least and (
        _relieve(all_singles, load, least) or any(_put_outside(single, load, least) for single in all_singles)
    ):
        pass
    return max(load.values()), shares.tolist(), singles


def _singles(cells: list[SumCell], count: int, inside: Sequence[int]) -> list[Single]:
    """Return the last ``count`` elements of a group's cells, as a :class:`Single` each.

    They are in the order of the cells, and no rank has receptions for them yet. For example, the last 3 elements of
    cells of 4 and 2 elements are one of the first cell and both of the second one.
    """
    singles: list[Single] = []
    for cell in reversed(cells):
        count_in_cell = min(count - len(singles), volume(cell.box))
        if count_in_cell:
            singles += [Single(cell, tuple(inside), {}) for _ in range(count_in_cell)]
    return singles[::-1]


def _put_outside(single: Single, load: dict[int, int], limit: int) -> bool:
    """Let a rank outside ``single.inside`` add up an element, if that helps busy ranks.

    Return True if it helps. Ranks in ``inside`` can add the element without more receptions in total; another rank
    costs one more, but may have time. The function looks for such a rank only if an adder of the element has a load
    above ``limit`` and all its adders are in ``inside``. It tries ranks with the smallest load first, and takes the
    first one that lowers the number of receptions above ``limit``. Without success, it returns False, and ``single``
    and ``load`` stay as they are.

    Args:
        single: the element; its receptions are changed in place.
        load: the number of receptions by rank; changed in place.
        limit: the load that no rank should exceed.
    """
    if not any(load[rank] > limit for rank in single.receptions) or {*single.receptions} - {*single.inside}:
        return False
    load_before, receptions_before = dict(load), dict(single.receptions)
    single.clear(load)
    for rank in sorted(load, key=lambda rank: (load[rank], rank)):
        count = min(limit - load[rank], single.cell.fewest + 1)
        # One reception is additional, so a rank must take two at least, or all of them.
        if rank in single.inside or count < min(2, single.cell.fewest + 1):
            continue
        single.add(rank, count)
        load[rank] += count
        single.deal(load, single.cell.fewest + 1 - count)
        if _excess(load, limit) < _excess(load_before, limit):
            return True
        single.clear(load)
    load.update(load_before)
    single.receptions.update(receptions_before)
    return False


def _excess(load: dict[int, int], limit: int) -> int:
    """Return the number of receptions above ``limit``, summed over the ranks."""
    return sum(max(0, count - limit) for count in load.values())


def _relieve(singles: list[Single], load: dict[int, int], limit: int) -> bool:
    """Take one reception from the busiest rank; return False if that is impossible.

    The reception moves along a chain of ranks to one with a load below ``limit``. For example, rank 0 gives
    one reception of an element to rank 1; rank 1, which was full, gives one of another element to rank 2, which had
    room. The shortest chain is taken. Without success, nothing changes.

    Args:
        singles: the single elements; their receptions are changed in place.
        load: the number of receptions by rank; changed in place.
        limit: the load that no rank should exceed.
    """
    busiest = max(load, key=lambda rank: load[rank])
    chains: dict[int, list[tuple[int, Single, int]]] = {busiest: []}
    queue = [busiest]
    for rank in queue:
        used = [id(single) for _, single, _ in chains[rank]]
        for single in singles:
            if rank not in single.receptions or rank not in single.inside or id(single) in used:
                continue
            for next_rank in single.inside:
                if next_rank in chains or not single.can_take(next_rank, rank):
                    continue
                chains[next_rank] = [*chains[rank], (rank, single, next_rank)]
                queue.append(next_rank)
                if load[next_rank] < limit:
                    for giver, element, taker in chains[next_rank]:
                        element.add(giver, -1)
                        element.add(taker, 1)
                    load[busiest] -= 1
                    load[next_rank] += 1
                    return True
    return False


def _order_adders(cell: SumCell, receptions: dict[int, int], sent: dict[int, int]) -> list[int]:
    """Return the adders of a box in the order in which they pass the sum on.

    1. Adders that do not want the result.
    2. Adders that want it; first those without an addend. Equal ones are in the order of ranks.
    3. If a rank that wants the result can add its own addend at the end: this rank. Of several, the one that has
       sent least.

    An only adder that receives nothing and owns an addend is left out if there is a rank of point 3: that rank can
    receive the addend itself.

    Args:
        cell: the cell of the box.
        receptions: the receptions of each adder, by rank.
        sent: the elements that each rank has sent so far.
    """
    order = sorted(
        receptions,
        key=lambda rank: (rank in cell.wanting, rank in cell.wanting and rank in cell.term_of, rank),
    )
    if len(order) == 1 and not receptions[order[0]] and order[0] in cell.term_of:
        order = []  # The only adder would add its own addend only.
    finishers = cell.finishers(receptions)
    if finishers:
        order.append(min(finishers, key=lambda rank: (sent[rank], rank)))
    return order or list(receptions)


def _build_part(
    cell: SumCell, order: list[int], box: Bounds, receptions: dict[int, int], sent: dict[int, int]
) -> Part:
    """Return a box with its adders, each with the ranks whose addends it adds.

    - Each adder adds its own addend, unless an earlier adder has an equal one.
    - It adds as many others as it has receptions; all but the first one receive the sum, too, which is one of them.
    - The last adder adds all that remain. If it has no receptions of its own, the adder before it does.

    Of several ranks with one addend, the one that has sent least sends it; of equal ones, the lowest. The ranks of an
    adder are in the order of the addends. For example, of 4 addends on ranks 0 to 3, the adder 0 with one reception
    adds those of ranks 0 and 2; then the adder 1 adds those of ranks 1 and 3.

    Args:
        cell: the cell of the box.
        order: the adders, in the order in which they pass the sum on.
        box: the box.
        receptions: the addends and sums that each adder receives per element, by rank; the last adder may be absent.
        sent: the elements that each rank has sent so far; updated.
    """
    first_adder_of_term = {cell.term_of[rank]: rank for rank in reversed(order) if rank in cell.term_of}
    remaining = [term for term in range(len(cell.owners)) if term not in first_adder_of_term]
    adders = []
    for number, rank in enumerate(order):
        own_term = cell.term_of.get(rank)
        terms = []
        if own_term is not None and first_adder_of_term[own_term] == rank:
            terms.append((own_term, rank))
        count = _count_other_addends(number, order, receptions, len(remaining))
        for term in remaining[:count]:
            sender = min(cell.owners[term], key=lambda owner: (sent[owner], owner))
            sent[sender] += volume(box)
            terms.append((term, sender))
        del remaining[:count]
        adders.append((rank, tuple([sender for _, sender in sorted(terms)])))
    return Part(box, tuple(adders), cell.wanting)


def _count_other_addends(number: int, order: list[int], receptions: dict[int, int], remaining: int) -> int:
    """Return the number of addends of other ranks that one adder of a box adds.

    - The last adder: all that remain. So does the adder before a last one that receives only the sum.
    - Another adder: its receptions, of which one is the sum if it is not the first adder.

    Args:
        number: the adder's position in ``order``.
        order: the adders, in the order in which they pass the sum on.
        receptions: the receptions of each adder, by rank; a last adder that receives only the sum is absent.
        remaining: the number of addends that no adder has added yet or owns.
    """
    is_last = number == len(order) - 1
    last_receives_sum_only = number == len(order) - 2 and order[-1] not in receptions
    if is_last or last_receives_sum_only:
        return remaining
    receives_sum = number > 0
    return receptions[order[number]] - receives_sum


def _cut_boxes(box: Bounds, first: int, last: int) -> list[Bounds]:
    """Return the elements ``first`` to ``last - 1`` of a box in row-major order, as boxes.

    Args:
        box: ``(start, stop)`` in each dimension; at least one.
        first: the number of the first element in the box.
        last: the number after the last element; the list is empty if it is not above ``first``.

    >>> _cut_boxes(((0, 3), (0, 4)), 2, 8)
    [((0, 1), (2, 4)), ((1, 2), (0, 4))]
    """
    if first >= last:
        return []
    start, other_dims = box[0][0], box[1:]
    row = volume(other_dims)
    top, bottom = -(-first // row), last // row
    if top > bottom:  # within one row
        inner = _cut_boxes(other_dims, first - bottom * row, last - bottom * row)
        return [((start + bottom, start + bottom + 1), *inner_box) for inner_box in inner]
    boxes = []
    if first < top * row:
        inner = _cut_boxes(other_dims, first - (top - 1) * row, row)
        boxes += [((start + top - 1, start + top), *inner_box) for inner_box in inner]
    if top < bottom:
        boxes.append(((start + top, start + bottom), *other_dims))
    if bottom * row < last:
        inner = _cut_boxes(other_dims, 0, last - bottom * row)
        boxes += [((start + bottom, start + bottom + 1), *inner_box) for inner_box in inner]
    return boxes
