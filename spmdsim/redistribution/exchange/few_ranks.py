"""What an exchange among few ranks moves, in plain Python: for eight numbers arrays are the slower way.

A planner prices many exchanges that differ in the axes of one or two dims, so what one dim contributes is kept.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from functools import cached_property, lru_cache
from math import prod
from operator import mul, sub
from typing import NamedTuple

from spmdsim.core import Mesh
from spmdsim.layout.blocks import nested_blocks
from spmdsim.redistribution.exchange.even_pieces import senders
from spmdsim.redistribution.exchange.grid import Ends, piece_numbers, ranks_of
from spmdsim.redistribution.exchange.shares import apart


class FewVolume:
    """The busiest ranks of an exchange, counted as :class:`~spmdsim.redistribution.exchange.exchange_volume.ExchangeVolume` counts them."""

    def __init__(self, ends: Ends) -> None:
        self._ends = have, src, want, dst, shape = ends
        self._held = _held(have, want)
        self._dims = [_along(have, a, want, b, size) for size, a, b in zip(shape, src, dst)]
        self._own = _product([position >= 0 for position in self._held], [dim.own for dim in self._dims])
        self._wanted = _product([1] * want.size, [dim.wanted for dim in self._dims])
        #: The most elements one rank receives from others.
        self.most_received = max(map(sub, self._wanted, self._own))

    @cached_property
    def most_messages(self) -> int:
        """The most messages one rank receives; those who hold a piece share its boxes."""
        have, src, want, dst, shape = self._ends
        if self._holders > 1:
            return self._shared_messages()
        columns = []
        for size, before, after in zip(shape, src, dst):
            if before == after[: len(before)] and (have == want or not before):
                continue  # one piece has it all
            count = _overlapping(size, _parts(have, before), _parts(want, after))
            columns.append([count[piece] for piece in piece_numbers(want, after).tolist()])
        sources = _product([1] * want.size, columns)
        return max([n - (own > 0) if all_ else 0 for n, own, all_ in zip(sources, self._own, self._wanted)])

    @cached_property
    def most_sent(self) -> float:
        """The most elements one rank sends: what others want of its piece, by those who hold it."""
        want, dst = self._ends.want, self._ends.dst
        copies = want.size // want.axis_size(*[axis for entry in dst for axis in entry], *self._apart)
        sent = _product([copies] * len(self._pieces), [dim.given for dim in self._dims])
        demand = dict(zip(self._pieces, sent))
        for position, own in zip(self._held, self._own):
            if own:
                demand[self._pieces[position]] -= own
        return max(demand.values()) / self._holders

    @cached_property
    def _apart(self) -> tuple[str, ...]:
        return apart(self._ends)

    @cached_property
    def _pieces(self) -> list[int]:
        """Per position of the source's mesh the number of its piece: the same where the same is held."""
        have, src, *_ = self._ends
        result: list[int] = piece_numbers(
            have, (*[axis for entry in src for axis in entry], *self._apart)
        ).tolist()
        return result

    @cached_property
    def _holders(self) -> int:
        """How many ranks hold each piece."""
        have, src, *_ = self._ends
        return have.size // have.axis_size(*[axis for entry in src for axis in entry], *self._apart)

    def _shared_messages(self) -> int:
        """Who needs which piece, counted pair by pair."""
        have, src, want, dst, shape = self._ends
        dims = [
            (*_boxes(size, have, before), *_boxes(size, want, after))
            for size, before, after in zip(shape, src, dst)
        ]
        slices = [piece_numbers(mesh, self._apart).tolist() for mesh in (have, want)]
        needing: dict[int, list[int]] = {}
        for position, piece in enumerate(self._pieces):
            if piece in needing:
                continue
            ranks = [
                rank
                for rank, held in enumerate(self._held)
                if slices[0][position] == slices[1][rank] and not (held >= 0 and self._pieces[held] == piece)
            ]
            for start, stop, begins, ends in dims:
                a, b = start[position], stop[position]
                ranks = [rank for rank in ranks if a < ends[rank] and begins[rank] < b]
            needing[piece] = ranks
        messages = [0] * want.size
        for ranks in needing.values():
            for rank in ranks:
                messages[rank] += senders(self._holders, len(ranks))
        return max(messages)


def _product(start: list[int], columns: list[list[int]]) -> list[int]:
    """Columns multiplied row by row."""
    rows: Iterable[int] = start
    for column in columns:
        rows = map(mul, rows, column)
    return list(rows)


class Along(NamedTuple):
    """One dim of an exchange: lengths per rank.

    Attributes:
        given: per position of the source's mesh, what it holds.
        wanted: per position of the target's mesh, what it wants.
        own: per position of the target's mesh, what it wants and holds.
    """

    given: list[int]
    wanted: list[int]
    own: list[int]


@lru_cache(maxsize=4096)
def _along(have: Mesh, src: tuple[str, ...], want: Mesh, dst: tuple[str, ...], size: int) -> Along:
    starts, lengths = pieces_of(size, _parts(have, src))
    held = piece_numbers(have, src).tolist()
    offered = [lengths[piece] for piece in held]
    if have == want and src == dst:
        return Along(offered, offered, offered)
    begins, sizes = pieces_of(size, _parts(want, dst))
    asked = piece_numbers(want, dst).tolist()
    wanted = [sizes[piece] for piece in asked]
    if have == want and src == dst[: len(src)]:
        return Along(offered, wanted, wanted)
    if have == want and dst == src[: len(dst)]:
        return Along(offered, wanted, offered)
    here = held if have == want else [held[p] if p >= 0 else 0 for p in _held(have, want)]
    own = []
    for mine, theirs in zip(here, asked):
        a, c = starts[mine], begins[theirs]
        b, d = a + lengths[mine], c + sizes[theirs]
        own.append(max((b if b < d else d) - (a if a > c else c), 0))
    return Along(offered, wanted, own)


@lru_cache(maxsize=4096)
def _overlapping(size: int, before: tuple[int, ...], after: tuple[int, ...]) -> list[int]:
    """Per piece of a dim how many pieces of another cut have some of it; empty pieces say anything."""
    edges = [start for start, length in zip(*pieces_of(size, before)) if length]
    return [
        bisect_left(edges, start + length) - bisect_right(edges, start) + 1
        for start, length in zip(*pieces_of(size, after))
    ]


@lru_cache(maxsize=4096)
def _boxes(size: int, mesh: Mesh, entry: tuple[str, ...]) -> tuple[list[int], list[int]]:
    """Start and stop of a dim per position of a mesh; of an empty piece both are 0."""
    starts, lengths = pieces_of(size, _parts(mesh, entry))
    numbers = piece_numbers(mesh, entry).tolist()
    first = [starts[n] if lengths[n] else 0 for n in numbers]
    return first, [start + lengths[n] for start, n in zip(first, numbers)]


def _parts(mesh: Mesh, entry: tuple[str, ...]) -> tuple[int, ...]:
    return tuple([mesh.size_of[axis] for axis in entry])


@lru_cache(maxsize=4096)
def pieces_of(size: int, parts: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """Starts and lengths of the pieces of a dim."""
    count = prod(parts)
    if size % count == 0:
        length = size // count
        return [k * length for k in range(count)], [length] * count
    blocks = nested_blocks(size, parts)
    return [start for start, _ in blocks], [length for _, length in blocks]


@lru_cache(maxsize=512)
def _held(have: Mesh, want: Mesh) -> list[int]:
    """Per position of the target's mesh its rank's position in the source's mesh, -1 if it is not there."""
    result: list[int] = ranks_of(have).positions(ranks_of(want).rank).tolist()
    return result
