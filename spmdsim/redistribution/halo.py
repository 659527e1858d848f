"""Windows of split dims: each rank receives from its neighbours what its window reads and it does not hold, and nothing else.

A step takes one split dim from its blocks to its windows (:class:`~spmdsim.layout.windowed_layout.Windowed`), along the axes that
split it, and unsplit dims with it; several split dims are several steps, so that corners come by way of a neighbour.
The way back adds contributions up: that is how gradients return. Which rank has what follows from the cuts of blocks and
positions, for one rank in constant time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np

from spmdsim.core.layout import Layout, Mesh
from spmdsim.core.step import LOCAL_STEPS, Index, Step
from spmdsim.layout.windowed_layout import Window, Windowed
from spmdsim.redistribution.exchange.grid import cuts, parts_of, piece_numbers
from spmdsim.redistribution.lower_bound import ReceptionBound

HALO_EXCHANGE, HALO_REDUCE = "halo_exchange", "halo_reduce"
#: The same where no split dim has a window, or one that nobody else's block is part of: nothing is sent.
WINDOW = "window"
#: So many ranks at each end of a group are asked for the busiest.
ASKED = 128
#: Room around a block is so many elements, or two, four, ... times as many: slices of one dim differ by a few, and share it.
ROOM = 4


class HaloPiece(NamedTuple):
    """Elements that go from one rank's array to another's, as slices of both."""

    source: Index
    target: Index
    size: int


@dataclass(frozen=True)
class HaloStep(Step):
    """From blocks to windows of a dim, or back, where contributions are added up; elements without any are zero."""

    back: bool = field(default=False, kw_only=True)

    def received_elements(self, rank: int) -> int:
        """Return the number of elements that ``rank`` receives from others."""
        return 0 if self.collective in LOCAL_STEPS else elements(received(self, rank), rank)

    def sent_elements(self, rank: int) -> int:
        """Return the number of elements that ``rank`` sends to others."""
        return 0 if self.collective in LOCAL_STEPS else elements(sent(self, rank), rank)

    @property
    def windowed(self) -> Windowed:
        """The layout with more windows."""
        layout = self.src if self.back else self.dst
        assert isinstance(layout, Windowed)
        return layout

    @property
    def plain(self) -> Layout:
        """The layout with fewer."""
        return self.dst if self.back else self.src


class Dim:
    """A dim with a window, cut in pieces: blocks of elements, and of positions."""

    def __init__(self, window: Window, n: int, parts: tuple[int, ...]) -> None:
        self.window, self.n = window, n
        self.blocks, self.positions = cuts(n, parts), cuts(window.size, parts)
        self.count = math.prod(parts)

    @cached_property
    def lengths(self) -> np.ndarray:
        """What each piece reads in all."""
        return np.array([len(self.reads(piece)) for piece in range(self.count)], np.int64)

    @cached_property
    def forward(self) -> tuple[np.ndarray, np.ndarray]:
        """Per piece what it reads, and what of that is in its own block."""
        return self.lengths, np.array([self._size(k, k) for k in range(self.count)], np.int64)

    @cached_property
    def backward(self) -> tuple[np.ndarray, np.ndarray]:
        """Per block what pieces read of it, and what of that its own piece reads."""
        read = [sum(self._size(k, reader) for reader in self.readers(k)) for k in range(self.count)]
        return np.array(read, np.int64), self.forward[1]

    def _size(self, block: int, reader: int) -> int:
        return sum(part.stop - part.start for _, part in self.shared(block, reader))

    def block(self, piece: int) -> tuple[int, int]:
        """The elements of a block."""
        return int(self.blocks.start[piece]), int(self.blocks.stop[piece])

    def reads(self, piece: int) -> range:
        """The elements that the positions of a piece read, unrolled."""
        return self.window.reads(int(self.positions.start[piece]), int(self.positions.stop[piece]), self.n)

    def sources(self, piece: int) -> list[int]:
        """The pieces whose blocks have an element that this piece's positions read."""
        wanted, pieces = self.reads(piece), set()
        for turn in self._turns(wanted):
            ends = min(wanted[0], wanted[-1]), max(wanted[0], wanted[-1]) + 1
            low, high = max(ends[0], turn * self.n), min(ends[1], (turn + 1) * self.n)
            if low < high:
                a, b = self.blocks.overlapping(low - turn * self.n, high - turn * self.n)
                pieces.update(self.blocks.piece[a:b].tolist())
        return [piece_ for piece_ in sorted(pieces) if self.shared(piece_, piece)]

    def readers(self, piece: int) -> list[int]:
        """The pieces whose positions read an element of this piece's block."""
        (start, stop), pieces = self.block(piece), set()
        if start == stop or not self.window.size:
            return []
        window = self.window
        reach = range(window.first, (window.size - 1) * window.stride + window.first + window.width)
        for turn in self._turns(reach) if window.wrap else range(1):
            a, b = window.readers(start + turn * self.n, stop + turn * self.n)
            if a < b:
                first, last = self.positions.overlapping(a, b)
                pieces.update(self.positions.piece[first:last].tolist())
        return [reader for reader in sorted(pieces) if self.shared(piece, reader)]

    def shared(self, block: int, reader: int) -> list[tuple[slice, slice]]:
        """What a reader reads of a block: slices of the block, and of what is read."""
        (start, stop), wanted, out = self.block(block), self.reads(reader), []
        for turn in self._turns(wanted) if start < stop else ():
            low, high = start + turn * self.n - wanted.start, stop + turn * self.n - wanted.start
            step = wanted.step
            # The places whose elements are from low to high, counted from the first that is read.
            i, j = (
                (-(-low // step), -(-high // step)) if step > 0 else (-(-(high - 1) // step), low // step + 1)
            )
            i, j = max(0, i), min(len(wanted), j)
            if i < j:
                at, last = i * step - low, (j - 1) * step - low
                out.append(
                    (slice(at, last + 1 if step > 0 else last - 1 if last else None, step), slice(i, j))
                )
        return out

    def _turns(self, wanted: range) -> range:
        """How often the dim is gone through, from where to where."""
        if not wanted or not self.n:
            return range(0)
        return range(wanted[0] // self.n, wanted[-1] // self.n + 1) if self.window.wrap else range(1)


dim_of = lru_cache(maxsize=4096)(Dim)


def _changed(step: HaloStep) -> list[tuple[int, Dim, tuple[str, ...]]]:
    """The dims that get windows, or lose them: number, cuts, axes."""
    before = step.plain.windows if isinstance(step.plain, Windowed) else (None,) * len(step.shape)
    return [
        (d, dim_of(window, step.shape[d], parts_of(step.src.mesh, entry)), entry)
        for d, (window, old, entry) in enumerate(zip(step.windowed.windows, before, step.windowed.dims))
        if window is not None and old is None
    ]


def _number(mesh: Mesh, axes: tuple[str, ...], rank: int) -> int:
    """Which piece a rank has of a dim that axes split."""
    coords, number = mesh.coords(rank), 0
    for axis in axes:
        number = number * mesh.size_of[axis] + coords[mesh.axis_index(axis)]
    return number


def _pieces(step: HaloStep, sizes: Sequence[int], ends: dict[int, tuple[int, int]]) -> list[HaloPiece]:
    """What a reader reads of a block, both by the split dims that change; ``sizes`` in those that do not."""
    options: list[Sequence[tuple[slice, slice]]] = [[(slice(0, n), slice(0, n))] for n in sizes]
    for d, dim, _ in _changed(step):
        options[d] = dim.shared(*ends.get(d, (0, 0)))
    out = []
    for chosen in product(*options):
        size = math.prod(part.stop - part.start for _, part in chosen)
        if size:
            source, target = tuple(a for a, _ in chosen), tuple(b for _, b in chosen)
            out.append(HaloPiece(target, source, size) if step.back else HaloPiece(source, target, size))
    return out


@lru_cache(maxsize=8192)
def received(step: HaloStep, rank: int) -> tuple[tuple[int, tuple[HaloPiece, ...]], ...]:
    """What ``rank`` gets from each member of its group, in the group's order, itself included."""
    return tuple(_traffic(step, rank, step.back))


@lru_cache(maxsize=8192)
def sent(step: HaloStep, rank: int) -> tuple[tuple[int, tuple[HaloPiece, ...]], ...]:
    """What ``rank`` gives to each member of its group, in the group's order, itself included."""
    return tuple(_traffic(step, rank, not step.back))


class Room(NamedTuple):
    """Memory for a rank's block with room around it, in which the windows of a shift, and of the opposite one, lie."""

    shape: tuple[int, ...]
    block: Index
    windows: Index


@lru_cache(maxsize=4096)
def room_around(step: HaloStep, rank: int) -> Room | None:
    """Room on both sides for as many elements as go to a neighbour or come from one, and a few more where blocks are long.

    None where windows overlap, or nothing comes and goes, or a window reads less than half of the rank's own block: what
    is copied then is the window alone.
    """
    incoming, outgoing, changed = received(step, rank), sent(step, rank), _changed(step)
    own = [piece for peer, pieces in incoming if peer == rank for piece in pieces]
    shifted = not step.back and all(dim.window.width == dim.window.stride == 1 for _, dim, _ in changed)
    if not shifted or len(own) != 1 or not elements((*incoming, *outgoing), rank):
        return None
    sizes, read = (layout.local_shape(step.shape, rank) for layout in (step.src, step.dst))
    leaving = [piece for peer, pieces in outgoing if peer != rank for piece in pieces]
    reach, first = [0] * len(sizes), [a.start - b.start for a, b in zip(own[0].source, own[0].target)]
    for d in (d for d, dim, _ in changed if dim.count > 1):
        sides = (-first[d], first[d] + read[d] - sizes[d])
        reach[d] = max(0, *sides, *[piece.source[d].stop - piece.source[d].start for piece in leaving])
    rounded = [more and max(ROOM, 1 << (more - 1).bit_length()) for more in reach]
    reach = next((some for some in (rounded, reach) if _little_more(sizes, some)), [])
    if 2 * own[0].size < math.prod(sizes) or not reach:
        return None
    shape = tuple(n + 2 * more for n, more in zip(sizes, reach))
    block = tuple(slice(more, more + n) for n, more in zip(sizes, reach))
    return Room(shape, block, tuple(slice(m + a, m + a + n) for n, m, a in zip(read, reach, first)))


@lru_cache(maxsize=4096)
def margins_around(step: HaloStep, rank: int) -> tuple[tuple[int, int], ...]:
    """Per dim how much room a rank's windows want before them and after them; () for none."""
    windows, shape = step.windowed.windows, step.shape
    if step.back or rank not in step.dst.mesh or not any(window and window.padded for window in windows):
        return ()
    counts = [n if window is None else window.size for n, window in zip(shape, windows)]
    bounds = step.windowed.base.bounds(counts, rank)
    margins = tuple(
        window.beyond(*ends, n) if window and window.padded else (0, 0)
        for window, ends, n in zip(windows, bounds, shape)
    )
    return margins if any(map(any, margins)) else ()


def _little_more(sizes: Sequence[int], reach: Sequence[int]) -> bool:
    """Whether a block with room on both sides is at most a quarter larger than the block."""
    return 4 * math.prod(n + 2 * more for n, more in zip(sizes, reach)) <= 5 * math.prod(sizes)


def _traffic(step: HaloStep, rank: int, blocks: bool) -> Iterator[tuple[int, tuple[HaloPiece, ...]]]:
    """A rank's part, as the one that has a block, or as the one that reads."""
    mesh = step.src.mesh
    if rank not in mesh:
        return
    split = [(d, dim, entry) for d, dim, entry in _changed(step) if dim.count > 1]
    sizes, mine = step.plain.local_shape(step.shape, rank), [_number(mesh, e, rank) for _, _, e in split]
    for others in product(
        *[(dim.readers if blocks else dim.sources)(k) for (_, dim, _), k in zip(split, mine)]
    ):
        ends = {d: (k, other) if blocks else (other, k) for (d, _, _), k, other in zip(split, mine, others)}
        pieces = _pieces(step, sizes, ends)
        if pieces:
            yield _peer(mesh, rank, [(e, other) for (_, _, e), other in zip(split, others)]), tuple(pieces)


def _peer(mesh: Mesh, rank: int, places: Sequence[tuple[tuple[str, ...], int]]) -> int:
    """The rank that has other pieces of some dims, and is where ``rank`` is in the others."""
    coords = dict(zip(mesh.axes, mesh.coords(rank)))
    for axes, number in places:
        for axis in reversed(axes):
            number, coords[axis] = divmod(number, mesh.size_of[axis])
    return mesh.rank_of([*coords.values()])


def elements(traffic: Sequence[tuple[int, Sequence[HaloPiece]]], rank: int) -> int:
    """Elements that go to, or come from, others than ``rank``."""
    return sum(piece.size for peer, pieces in traffic if peer != rank for piece in pieces)


@lru_cache(maxsize=1024)
def all_halo_received(step: HaloStep) -> np.ndarray:
    """Elements that every position of the mesh receives: what it gets in all, less what it has itself, dim by dim."""
    mesh, changed = step.src.mesh, {d: dim for d, dim, _ in _changed(step)}
    read, own = np.ones(mesh.size, np.int64), np.ones(mesh.size, np.int64)
    for d, entry in enumerate(step.src.dims):
        number = piece_numbers(mesh, entry)
        if d in changed:
            each = changed[d].backward if step.back else changed[d].forward
            read, own = read * each[0][number], own * each[1][number]
        else:
            window = step.plain.windows[d] if isinstance(step.plain, Windowed) else None
            sizes = dim_of(window or Window(step.shape[d]), step.shape[d], parts_of(mesh, entry)).lengths[
                number
            ]
            read, own = read * sizes, own * sizes
    received: np.ndarray = read - own
    return received


@lru_cache(maxsize=1024)
def busiest(step: HaloStep) -> tuple[int, int]:
    """Elements that the busiest rank receives or sends, whichever is more, and from how many others."""
    mesh = step.src.mesh
    # Groups are alike but for the sizes of the other dims, of which the first rank's are the largest.
    group = mesh.group(mesh.rank_at(0), *step.axes)
    asked = dict.fromkeys((*group[:ASKED], *group[-ASKED:]))
    ends = [(traffic(step, rank), rank) for rank in asked for traffic in (received, sent)]
    messages = max(sum(peer != rank for peer, _ in traffic) for traffic, rank in ends)
    return max(elements(*end) for end in ends), messages


def halo_bound(src: Layout, dst: Layout, shape: tuple[int, ...]) -> ReceptionBound:
    """What must be received: each element that a rank is to have and another one's piece has, too, or instead.

    Pieces of windows are contributions that are added up; there is one of an element's block. Counted dim by dim from the
    layouts alone, without steps.
    """
    groups = [src.mesh.group(src.mesh.rank_at(0), *entry) for entry in src.dims]
    pieces = [sum(_has(src, rank, shape)[d].astype(int) for rank in group) for d, group in enumerate(groups)]
    counts = []
    for rank in dst.mesh.rank_list:
        parts = [*zip(pieces, _has(src, rank, shape), _has(dst, rank, shape))]
        in_some = math.prod([np.count_nonzero(wanted & (count > 0)) for count, _, wanted in parts])
        alone = math.prod([np.count_nonzero(wanted & own & (count == 1)) for count, own, wanted in parts])
        counts.append(in_some - alone)
    return ReceptionBound.of_each(np.array(counts, np.int64))


def _has(layout: Layout, rank: int, shape: tuple[int, ...]) -> list[np.ndarray]:
    """Per dim which elements a rank's piece has."""
    masks = [np.zeros(n, bool) for n in shape]
    blocks = (range(*ends) for ends in layout.bounds(shape, rank))
    for mask, part in zip(masks, layout.reads(shape, rank) if isinstance(layout, Windowed) else blocks):
        mask[np.arange(part.start, part.stop, part.step) % max(len(mask), 1)] = True
    return masks


# -- plans ----------------------------------------------------------------------------------------------


def _step(src: Layout, dst: Layout, shape: tuple[int, ...], axes: tuple[str, ...], back: bool) -> HaloStep:
    name, op = HALO_REDUCE if back else HALO_EXCHANGE, "sum" if back else None
    step = HaloStep(name, axes, src, dst, shape, op, back=back)
    return step if axes and all_halo_received(step).any() else replace(step, collective=WINDOW)


@lru_cache(maxsize=4096)
def steps_to(windowed: Windowed, shape: tuple[int, ...], back: bool = False) -> list[tuple[HaloStep, ...]]:
    """The ways from the base of a layout with windows to it, or back: dim by dim, and all split dims at once.

    Unsplit dims come first, with the first split one. Dim by dim, corners come by way of a neighbour, who needs them as
    well where windows overlap, so that there are fewer messages; shifted windows cost a few bytes more so.
    """
    changed = [d for d, window in enumerate(windowed.windows) if window]
    split = [d for d in changed if windowed.base.parts[d] > 1]
    one_by_one = [[d] for d in split] or [[]]
    ways = [_steps(windowed, shape, back, one_by_one)]
    return [*ways, _steps(windowed, shape, back, [split])] if len(split) > 1 else ways


def _steps(
    windowed: Windowed, shape: tuple[int, ...], back: bool, order: list[list[int]]
) -> tuple[HaloStep, ...]:
    base, later = windowed.base, {d for dims in order for d in dims}
    here: Layout = base
    steps = []
    for dims in order:
        later -= {*dims}
        there = Windowed(base, [None if d in later else w for d, w in enumerate(windowed.windows)])
        axes = tuple(axis for d in dims for axis in base.dims[d])
        steps.append(
            _step(there, here, shape, axes, True) if back else _step(here, there, shape, axes, False)
        )
        here = there
    return tuple(steps[::-1] if back else steps)
