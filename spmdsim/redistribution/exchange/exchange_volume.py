"""What an exchange moves: elements received and sent, and messages, of all ranks at once or of the busiest.

Counted from the cuts, without listing a single transfer, so that pricing a plan costs a fraction of a
millisecond on small meshes and a few milliseconds on 65,536 ranks. Where everything divides it is a few products, however
many ranks there are. Among few ranks it is counted in plain Python: for eight numbers arrays are the slower way. A
planner prices many exchanges that differ in the axes of one or two dims, so what one dim contributes is kept.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from functools import cached_property, lru_cache
from math import gcd, prod
from operator import mul, sub
from typing import NamedTuple

import numpy as np

from spmdsim.core import Layout, Mesh
from spmdsim.redistribution.exchange.direct import FEW_RANKS
from spmdsim.redistribution.exchange.grid import (
    Cuts,
    Ends,
    apart,
    grids,
    on_positions,
    parts_of,
    piece_numbers,
    pieces_of,
    positions_in,
)

Axes = tuple[str, ...]


class EvenVolume:
    """The busiest ranks of an exchange, counted as :class:`ExchangeVolume` counts them.

    Pieces of a dim are nested, one in the other, or some rank's two pieces have nothing in common; so what the busiest
    rank has already is a product of lengths, or nothing. Among few ranks, those that hold a piece share its boxes.
    """

    def __init__(self, ends: Ends) -> None:
        have, src, _, dst, shape = ends
        size_of = have.size_of
        split = {axis for entry in src for axis in entry}
        own = wanted = held = kept = messages = box = 1
        for size, before, after in zip(shape, src, dst):
            had, asked = (size // prod([size_of[axis] for axis in entry]) for entry in (before, after))
            first, second = rests(before, after)
            nested = not first or not second
            own *= min(had, asked) if nested else 0
            held, wanted, messages = held * had, wanted * asked, messages * max(asked // had, 1)
            box *= min(had, asked)
            if second and not first:
                kept *= asked * prod([size_of[axis] for axis in second if axis not in split])
            else:
                kept *= had if nested or split.isdisjoint(second) else 0
        needed = {axis for entry in dst for axis in entry}
        apart = prod([size for axis, size in size_of.items() if axis not in split and axis not in needed])
        copies = have.size // (prod([size_of[axis] for axis in needed]) * apart)
        holders = have.size // (prod([size_of[axis] for axis in split]) * apart)
        demand = held * copies - kept
        self.most_received = wanted - own
        self.most_messages = messages - (own > 0)
        self.most_sent = demand / holders
        if have.size <= FEW_RANKS and demand:
            self.most_messages *= senders(holders, demand // box)


def even_volume(ends: Ends) -> EvenVolume | None:
    """The traffic of an exchange, where it is this simple: on one mesh, with equal pieces whose cuts nest."""
    have, src, want, dst, shape = ends
    if have != want or 0 in shape:
        return None
    size_of = have.size_of
    split = {axis for entry in src for axis in entry}
    for size, before, after in zip(shape, src, dst):
        one, other = sorted(prod([size_of[axis] for axis in entry]) for entry in (before, after))
        if other % one or size % other:
            return None
        first, second = rests(before, after)
        if first and second and second[0] not in split and not split.isdisjoint(second):
            return None
    return EvenVolume(ends)


def senders(holders: int, boxes: int) -> int:
    """Of how many holders one of several equal boxes consists at most, if each holder sends equally much of all.

    >>> [senders(holders, boxes) for holders, boxes in ((2, 4), (4, 2), (2, 3), (3, 2))]
    [1, 2, 2, 2]
    """
    return 1 - (gcd(holders, boxes) - holders) // boxes


def rests(before: Axes, after: Axes) -> tuple[Axes, Axes]:
    """What two entries have behind their common beginning."""
    count = 0
    for one, other in zip(before, after):
        if one != other:
            break
        count += 1
    return before[count:], after[count:]


class FewVolume:
    """The busiest ranks of an exchange, counted as :class:`ExchangeVolume` counts them."""

    def __init__(self, ends: Ends) -> None:
        self._ends = have, src, want, dst, shape = ends
        self._held = positions_in(have, want)
        self._dims = [_along(have, a, want, b, size) for size, a, b in zip(shape, src, dst)]
        self._own = _product([position >= 0 for position in self._held], [dim.own for dim in self._dims])
        #: Per position of the target's mesh the elements of its piece.
        self.wanted = _product([1] * want.size, [dim.wanted for dim in self._dims])
        #: Per position of the target's mesh the elements that come from other ranks, and the most of these.
        self.received = list(map(sub, self.wanted, self._own))
        self.most_received = max(self.received)

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
            count = _overlapping(size, parts_of(have, before), parts_of(want, after))
            columns.append([count[piece] for piece in piece_numbers(want, after).tolist()])
        sources = _product([1] * want.size, columns)
        return max([n - (own > 0) if all_ else 0 for n, own, all_ in zip(sources, self._own, self.wanted)])

    @cached_property
    def most_sent(self) -> float:
        """The most elements one rank sends: what others want of its piece, by those who hold it."""
        want, dst = self._ends.want, self._ends.dst
        copies = want.size // want.axis_size(*[axis for entry in dst for axis in entry], *self._apart)
        sent = _product([copies] * len(self._pieces), [dim.offered for dim in self._dims])
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


few_volume = lru_cache(maxsize=4096)(FewVolume)


def _product(start: list[int], columns: list[list[int]]) -> list[int]:
    """Columns multiplied row by row."""
    rows: Iterable[int] = start
    for column in columns:
        rows = map(mul, rows, column)
    return list(rows)


class Along(NamedTuple):
    """One dim of an exchange: per position of the source's mesh what it gives, of the target's what it wants, and holds."""

    offered: list[int]
    wanted: list[int]
    own: list[int]


@lru_cache(maxsize=4096)
def _along(have: Mesh, src: tuple[str, ...], want: Mesh, dst: tuple[str, ...], size: int) -> Along:
    starts, lengths = pieces_of(size, parts_of(have, src))
    held = piece_numbers(have, src).tolist()
    offered = [lengths[piece] for piece in held]
    if have == want and src == dst:
        return Along(offered, offered, offered)
    begins, sizes = pieces_of(size, parts_of(want, dst))
    asked = piece_numbers(want, dst).tolist()
    wanted = [sizes[piece] for piece in asked]
    if have == want and src == dst[: len(src)]:
        return Along(offered, wanted, wanted)
    if have == want and dst == src[: len(dst)]:
        return Along(offered, wanted, offered)
    here = held if have == want else [held[p] if p >= 0 else 0 for p in positions_in(have, want)]
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
    starts, lengths = pieces_of(size, parts_of(mesh, entry))
    numbers = piece_numbers(mesh, entry).tolist()
    first = [starts[n] if lengths[n] else 0 for n in numbers]
    return first, [start + lengths[n] for start, n in zip(first, numbers)]


def _shared(cut: Cuts, piece: np.ndarray, other: Cuts, position: np.ndarray) -> np.ndarray:
    """Return the lengths that pieces of one cut of a dim have in common with pieces of another cut."""
    start = np.maximum(cut.start[piece], other.start[position])
    length: np.ndarray = np.maximum(np.minimum(cut.stop[piece], other.stop[position]) - start, 0)
    return length


class ExchangeVolume:
    """Elements and messages of the direct exchange from ``src`` to ``dst``; counted when asked for."""

    def __init__(self, src: Layout, dst: Layout, shape: tuple[int, ...]) -> None:
        self._have, self._want, _ = grids(src, dst, shape)
        one_mesh = src.mesh == dst.mesh
        self._held = None if one_mesh else self._have.ranks.positions(self._want.ranks.rank)

    @cached_property
    def own(self) -> np.ndarray:
        """Per position of the target mesh, the elements that the rank holds already."""
        have, want, held = self._have, self._want, self._held
        if held is None:
            sides = zip(have.cuts, have.shaped_pieces, want.cuts, want.shaped_pieces)
            return on_positions(want.mesh, prod([_shared(*dim) for dim in sides], start=np.int64(1)))
        out = np.ones(want.mesh.size, np.int64)
        for cut, piece, other, position in zip(have.cuts, have.pieces, want.cuts, want.pieces):
            out *= _shared(cut, piece[held], other, position)
        out[held < 0] = 0
        return out

    @cached_property
    def received(self) -> np.ndarray:
        """Per position of the target mesh, the elements that come from other ranks."""
        array: np.ndarray = self._want.volumes - self.own
        return array

    @cached_property
    def messages(self) -> np.ndarray:
        """Per position of the target mesh, from how many other ranks, where one holder of a piece sends its box."""
        counts = []
        for mine, theirs, piece in zip(self._want.cuts, self._have.cuts, self._want.shaped_pieces):
            first, last = theirs.overlaps(mine.start, np.maximum(mine.stop, mine.start + 1))
            counts.append((last - first)[piece])
        pieces = on_positions(self._want.mesh, prod(counts, start=np.int64(1)))
        return np.where(self._want.volumes > 0, pieces - (self.own > 0), 0)

    @cached_property
    def most_received(self) -> int:
        """The most elements one rank receives from others."""
        return int(self.received.max(initial=0))

    @cached_property
    def most_messages(self) -> int:
        """The most messages one rank receives."""
        return int(self.messages.max(initial=0))

    @cached_property
    def most_sent(self) -> float:
        """The most elements one rank sends, those who hold a piece sending equally much.

        A piece's demand is what all its receivers need, less what its holders hold themselves.
        """
        have, held = self._have, self._held
        shape = [cut.count for cut in have.cuts]
        if not all(shape):
            return 0.0
        sizes = np.ones(1, np.int64)
        for cut in have.cuts:
            sizes = (sizes[:, None] * np.diff(cut.edge_array)).ravel()
        keep = self.own > 0
        number = np.zeros(np.count_nonzero(keep), np.int64)
        for count, cell in zip(shape, have.cells):
            number = number * count + (cell if held is None else cell[held])[keep]
        kept = np.bincount(number, weights=self.own[keep], minlength=len(sizes))
        demand = sizes * self._want.copies - kept.astype(np.int64)
        return float(demand.max() / have.copies)


exchange_volume = lru_cache(maxsize=2048)(ExchangeVolume)


@lru_cache(maxsize=4096)
def busiest(ends: Ends) -> ExchangeVolume | FewVolume | EvenVolume:
    """The busiest ranks of a direct exchange as it is priced, cached by value; counted in lists for few ranks.

    Those who hold a piece are taken to send equally much, to the element and whatever the order of the boxes: so a
    price depends on sizes as shares of the tensor's. What is sent (:mod:`.shares`) is that up to rounding.
    """
    have, src, want, dst, shape = ends
    even = even_volume(ends)
    if even is not None:
        return even
    if have.size <= FEW_RANKS and want.size <= FEW_RANKS:
        return few_volume(ends)
    return exchange_volume(Layout(have, src), Layout(want, dst), shape)
