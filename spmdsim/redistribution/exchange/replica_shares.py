"""Share the sending between replicas of a source shard, on few ranks.

Each rank that needs elements of the shard and does not own it gets its box once. In target order these boxes are one line of
elements, and each of ``k`` replicas sends a ``k``-th of the line. This is the least that the busiest sender can send, or
within a few percent of it, so that a receiver gets one box from each sender.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from spmdsim.core import Bounds, Mesh
from spmdsim.core.layout import nested_blocks
from spmdsim.core.step import overlap, volume
from spmdsim.redistribution.exchange.transfers import Transfer
from spmdsim.redistribution.grid import Ends, Entries, apart, parts_of, piece_numbers, ranks_of

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
