"""Who sends what in a direct exchange among few ranks, so that equal copies send equally much.

A rank holds one source piece, so what its holders send together is given: every rank that needs some of the piece
and does not hold it gets its box of it, once. In target order these boxes are one line of elements, and each of
``k`` holders sends a ``k``-th of the line. That is the least the busiest sender can do (the maximum flow decomposes
by pieces), up to rounding: a box that two holders share is cut along one dim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from math import prod

from spmdsim.layout import Bounds, Mesh
from spmdsim.layout.blocks import nested_blocks
from spmdsim.redistribution.exchange.grid import Ends, Entries, piece_numbers, ranks_of
from spmdsim.redistribution.step import Transfer, overlap

#: Up to so many ranks per mesh; in larger ones a box is sent by one holder.
FEW_RANKS = 32
#: A shared box is cut along its first dim that is so long, or else along its longest.
LONG = 64


class Shares:
    """All transfers of an exchange, by receiver and by sender; each rank's own overlap has the rank as its peer."""

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
        """What a rank gets, source piece by source piece."""
        return tuple(self._received.get(rank, ()))

    def sends(self, rank: int) -> tuple[Transfer, ...]:
        """What a rank gives."""
        return tuple(self._sent.get(rank, ()))

    @property
    def most_sent(self) -> int:
        """The most elements one rank sends to others."""
        return _most(self._sent, lambda transfer: transfer.count)

    @property
    def most_messages(self) -> int:
        """The most other ranks that one rank receives from."""
        return _most(self._received, lambda transfer: 1)


def _most(transfers: dict[int, list[Transfer]], weight: Callable[[Transfer], int]) -> int:
    return max(
        (sum(weight(t) for t in mine if t.peer != rank) for rank, mine in transfers.items()), default=0
    )


def portions(line: Sequence[tuple[int, Bounds]], holders: Sequence[int]) -> Iterable[tuple[int, int, Bounds]]:
    """Each holder's part of a line of boxes: ``(holder, receiver, box)``.

    >>> list(portions([(5, ((0, 4),)), (6, ((0, 4),))], [0, 1, 2, 3]))
    [(0, 5, ((0, 2),)), (1, 5, ((2, 4),)), (2, 6, ((0, 2),)), (3, 6, ((2, 4),))]
    """
    count = len(holders)
    volumes = [prod([stop - start for start, stop in box]) for _, box in line]
    total, before = sum(volumes), 0
    for (rank, box), volume in zip(line, volumes):
        first, last = before * count // total, ((before + volume) * count - 1) // total
        if first == last or volume == 1:
            yield holders[(2 * before + volume) * count // (2 * total)], rank, box
        else:
            lengths = [stop - start for start, stop in box]
            dim = next((d for d, n in enumerate(lengths) if n >= LONG), lengths.index(max(lengths)))
            start, stop = box[dim]
            for number in range(first, last + 1):
                end = stop
                if number < last:
                    share = ((number + 1) * total - before * count) / (count * volume)
                    end = box[dim][0] + int(share * lengths[dim] + 0.5)
                if end > start:
                    yield holders[number], rank, (*box[:dim], (start, end), *box[dim + 1 :])
                start = end
        before += volume


def apart(ends: Ends) -> tuple[str, ...]:
    """On one mesh, the axes along which both sides copy: every rank keeps to its slice."""
    have, src, want, dst, _ = ends
    if have != want:
        return ()
    used = {axis for entry in (*src, *dst) for axis in entry}
    return tuple([axis for axis in have.axes if axis not in used])


def _members(
    ends: Ends, mesh: Mesh, entries: Entries, apart: tuple[str, ...]
) -> dict[tuple[int, Bounds], list[int]]:
    """The ranks that hold each piece that is not empty, pieces in order: by slice of the mesh and box."""
    dims = [nested_blocks(n, [mesh.size_of[a] for a in entry]) for n, entry in zip(ends.shape, entries)]
    numbers = [piece_numbers(mesh, entry).tolist() for entry in entries]
    slices = piece_numbers(mesh, apart).tolist()
    ranks = ranks_of(mesh).rank.tolist()
    places: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    pieces = zip(*numbers) if numbers else [()] * mesh.size
    for rank, slice_, piece in zip(ranks, slices, pieces):
        places.setdefault((slice_, piece), []).append(rank)
    found = {}
    for slice_, piece in sorted(places):
        blocks = [blocks[number] for blocks, number in zip(dims, piece)]
        if all(length for _, length in blocks):
            found[slice_, tuple([(start, start + length) for start, length in blocks])] = places[
                slice_, piece
            ]
    return found


def shares(ends: Ends) -> Shares | None:
    """The transfers of an exchange, cached by value; None if the meshes are large, or if there are no copies."""
    have, src, want, _, _ = ends
    if have.size > FEW_RANKS or want.size > FEW_RANKS:
        return None
    split = {axis for entry in src for axis in entry}
    if have.axis_size(*split, *apart(ends)) == have.size:
        return None
    return _shares(ends)


@lru_cache(maxsize=2048)
def _shares(ends: Ends) -> Shares:
    return Shares(ends)
