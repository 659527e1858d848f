"""What an exchange among few ranks moves, in plain Python: for eight numbers arrays are the slower way.

A planner prices many exchanges that differ in the axes of one or two dims, so what one dim contributes is kept.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import cached_property, lru_cache
from math import prod
from typing import NamedTuple

from spmdsim.layout import Mesh, split_block
from spmdsim.redistribution.grid import Entries, piece_numbers, ranks_of

#: Up to so many ranks per mesh this is faster than arrays.
FEW_RANKS = 32


class FewTraffic:
    """The busiest ranks of an exchange, counted as :class:`~spmdsim.redistribution.traffic.Traffic` counts them.

    Args:
        have: the mesh before.
        src: the axes that split each dim before.
        want: the mesh after.
        dst: the axes that split each dim after.
        shape: global shape.
    """

    def __init__(self, have: Mesh, src: Entries, want: Mesh, dst: Entries, shape: tuple[int, ...]) -> None:
        self._have, self._src, self._want, self._dst = have, src, want, dst
        self._dims = [_along(have, a, want, b, size) for size, a, b in zip(shape, src, dst)]
        self._held = _held(have, want)
        here = [position >= 0 for position in self._held]
        self._own = [prod(row) for row in zip(here, *[dim.own for dim in self._dims])]
        self._wanted = [prod(row) for row in zip((1,) * want.size, *[dim.wanted for dim in self._dims])]
        #: The most elements one rank receives from others.
        self.most_received = max([wanted - own for wanted, own in zip(self._wanted, self._own)])

    @cached_property
    def most_messages(self) -> int:
        """The most messages one rank receives."""
        sources = [prod(row) for row in zip((1,) * self._want.size, *[dim.sources for dim in self._dims])]
        return max([n - (own > 0) if all_ else 0 for n, own, all_ in zip(sources, self._own, self._wanted)])

    @cached_property
    def most_sent(self) -> int:
        """The most elements one rank sends, equal pieces being shared out evenly among their holders."""
        have, want = self._have, self._want
        split = [axis for entry in self._src for axis in entry]
        needed = [axis for entry in self._dst for axis in entry]
        apart = (
            [axis for axis in have.axes if axis not in split and axis not in needed] if have == want else []
        )
        piece = piece_numbers(have, (*split, *apart)).tolist()
        copies = want.size // want.axis_size(*needed, *apart)
        sizes = [prod(row) * copies for row in zip((1,) * have.size, *[dim.given for dim in self._dims])]
        demand = dict(zip(piece, sizes))
        for position, own in zip(self._held, self._own):
            if own:
                demand[piece[position]] -= own
        return -(-max(demand.values()) // (have.size // have.axis_size(*split, *apart)))


class Along(NamedTuple):
    """One dim of an exchange: lengths per rank.

    Attributes:
        given: per position of the source's mesh, what it holds.
        wanted: per position of the target's mesh, what it wants.
        own: per position of the target's mesh, what it wants and holds.
        sources: per position of the target's mesh, how many source pieces have some of what it wants.
    """

    given: list[int]
    wanted: list[int]
    own: list[int]
    sources: list[int]


@lru_cache(maxsize=4096)
def _along(have: Mesh, src: tuple[str, ...], want: Mesh, dst: tuple[str, ...], size: int) -> Along:
    before, after = _blocks(have, src, size), _blocks(want, dst, size)
    here = before if have == want else [before[p] if p >= 0 else (0, 0) for p in _held(have, want)]
    starts = sorted({start for start, stop in before if start < stop})
    return Along(
        [stop - start for start, stop in before],
        [stop - start for start, stop in after],
        [max(min(b, d) - max(a, c), 0) for (a, b), (c, d) in zip(here, after)],
        [bisect_left(starts, stop) - bisect_right(starts, start) + 1 for start, stop in after],
    )


@lru_cache(maxsize=4096)
def _blocks(mesh: Mesh, entry: tuple[str, ...], size: int) -> list[tuple[int, int]]:
    """Start and stop of each position's piece of a dim."""
    blocks = [(0, size)]
    for axis in entry:
        parts = mesh._size_of[axis]
        blocks = [split_block(start, length, parts, k) for start, length in blocks for k in range(parts)]
    pieces = [(start, start + length) for start, length in blocks]
    return [pieces[number] for number in piece_numbers(mesh, entry).tolist()]


@lru_cache(maxsize=512)
def _held(have: Mesh, want: Mesh) -> list[int]:
    """Per position of the target's mesh its rank's position in the source's mesh, -1 if it is not there."""
    return ranks_of(have).positions(ranks_of(want).rank).tolist()
