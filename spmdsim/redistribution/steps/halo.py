"""Exchange halos: each rank receives the elements that its window reads and that it does not own.

A step turns the blocks of one split dimension into windows (:class:`~spmdsim.layout.windowed_layout.Windowed`), along the axes
that split it, together with unsplit dimensions. Several split dimensions take several steps, so that corners come through a
neighbour. The reverse step adds contributions up; gradients use it. The transfers of one rank follow from the cuts of blocks
and positions in constant time.
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
from spmdsim.core.step import LOCAL_STEPS, Index
from spmdsim.layout.windowed_layout import Window, Windowed
from spmdsim.redistribution.bound.lower_bound import ReceptionBound
from spmdsim.redistribution.grid import cuts, parts_of, piece_numbers
from spmdsim.redistribution.steps.counted_step import CountedStep

HALO_EXCHANGE, HALO_REDUCE = "halo_exchange", "halo_reduce"
#: The name of a step that sends nothing: each window reads its rank's own block only.
WINDOW = "window"
#: The number of ranks at each end of a group that are compared to find the busiest one.
ASKED = 128
#: The least room around a block, in elements; it grows in powers of two, so that similar slices share a buffer.
ROOM = 4


class HaloPiece(NamedTuple):
    """Elements that go from one rank's array to another rank's array, as slices of both."""

    source: Index
    target: Index
    size: int


@dataclass(frozen=True)
class HaloStep(CountedStep):
    """A step from blocks to windows, or back: then contributions are added up, and elements without any are zero."""

    back: bool = field(default=False, kw_only=True)

    def received_elements(self, rank: int) -> int:
        """Return the number of elements that ``rank`` receives from others."""
        return 0 if self.collective in LOCAL_STEPS else elements(received(self, rank), rank)

    def sent_elements(self, rank: int) -> int:
        """Return the number of elements that ``rank`` sends to others."""
        return 0 if self.collective in LOCAL_STEPS else elements(sent(self, rank), rank)

    @property
    def received_by_position(self) -> np.ndarray:
        """Elements that each position of the mesh receives."""
        return all_halo_received(self)

    @property
    def most_moved(self) -> int:
        """Elements that the busiest rank receives or sends."""
        return busiest(self)[0]

    @property
    def most_messages(self) -> int:
        """Number of peers of the busiest rank."""
        return busiest(self)[1]

    @property
    def windowed(self) -> Windowed:
        """The side of the step that has more windows."""
        layout = self.src if self.back else self.dst
        assert isinstance(layout, Windowed)
        return layout

    @property
    def plain(self) -> Layout:
        """The side of the step that has fewer windows."""
        return self.dst if self.back else self.src


class Dim:
    """A dimension with a window, cut into pieces: blocks of elements, and blocks of window positions."""

    def __init__(self, window: Window, n: int, parts: tuple[int, ...]) -> None:
        self.window, self.n = window, n
        self.blocks, self.positions = cuts(n, parts), cuts(window.size, parts)
        self.count = math.prod(parts)

    @cached_property
    def lengths(self) -> np.ndarray:
        """Number of elements that each piece reads."""
        return np.array([len(self.reads(piece)) for piece in range(self.count)], np.int64)

    @cached_property
    def forward(self) -> tuple[np.ndarray, np.ndarray]:
        """Elements that each piece reads, and those of them in its own block."""
        return self.lengths, np.array([self._size(k, k) for k in range(self.count)], np.int64)

    @cached_property
    def backward(self) -> tuple[np.ndarray, np.ndarray]:
        """Elements of each block that pieces read, and those of them that its own piece reads."""
        read = [sum(self._size(k, reader) for reader in self.readers(k)) for k in range(self.count)]
        return np.array(read, np.int64), self.forward[1]

    def _size(self, block: int, reader: int) -> int:
        return sum(part.stop - part.start for _, part in self.shared(block, reader))

    def block(self, piece: int) -> tuple[int, int]:
        """Return the bounds of a block."""
        return int(self.blocks.start[piece]), int(self.blocks.stop[piece])

    def reads(self, piece: int) -> range:
        """Return the elements that the positions of a piece read. With wrapping, they may exceed the dimension."""
        return self.window.reads(int(self.positions.start[piece]), int(self.positions.stop[piece]), self.n)

    def sources(self, piece: int) -> list[int]:
        """Return the pieces from whose blocks this piece reads."""
        wanted, pieces = self.reads(piece), set()
        for turn in self._turns(wanted):
            ends = min(wanted[0], wanted[-1]), max(wanted[0], wanted[-1]) + 1
            low, high = max(ends[0], turn * self.n), min(ends[1], (turn + 1) * self.n)
            if low < high:
                a, b = self.blocks.overlapping(low - turn * self.n, high - turn * self.n)
                pieces.update(self.blocks.piece[a:b].tolist())
        return [piece_ for piece_ in sorted(pieces) if self.shared(piece_, piece)]

    def readers(self, piece: int) -> list[int]:
        """Return the pieces that read from this piece's block."""
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
        """Return what a reader reads of a block: slices of the block, and slices of the elements that the reader reads."""
        (start, stop), wanted, out = self.block(block), self.reads(reader), []
        for turn in self._turns(wanted) if start < stop else ():
            low, high = start + turn * self.n - wanted.start, stop + turn * self.n - wanted.start
            step = wanted.step
            # The indices of the elements from low to high, counted from the first element that is read.
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
        """Return the range of turns around the dimension that a range of elements covers."""
        if not wanted or not self.n:
            return range(0)
        return range(wanted[0] // self.n, wanted[-1] // self.n + 1) if self.window.wrap else range(1)


dim_of = lru_cache(maxsize=4096)(Dim)


def _changed(step: HaloStep) -> list[tuple[int, Dim, tuple[str, ...]]]:
    """Return ``(dimension, cuts, axes)`` of the dimensions that get windows or lose them."""
    before = step.plain.windows if isinstance(step.plain, Windowed) else (None,) * len(step.shape)
    return [
        (d, dim_of(window, step.shape[d], parts_of(step.src.mesh, entry)), entry)
        for d, (window, old, entry) in enumerate(zip(step.windowed.windows, before, step.windowed.dims))
        if window is not None and old is None
    ]


def _number(mesh: Mesh, axes: tuple[str, ...], rank: int) -> int:
    """Return the number of a rank's piece of a dimension that axes split."""
    coords, number = mesh.coords(rank), 0
    for axis in axes:
        number = number * mesh.size_of[axis] + coords[mesh.axis_index(axis)]
    return number


def _pieces(step: HaloStep, sizes: Sequence[int], ends: dict[int, tuple[int, int]]) -> list[HaloPiece]:
    """Return what a reader reads of a block.

    Args:
        step: the step.
        sizes: the shard's length in dimensions that do not change.
        ends: ``(block, reader)`` of the split dimensions that change.
    """
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
    """Return what ``rank`` receives from each member of its group, in the group's order, itself included."""
    return tuple(_traffic(step, rank, step.back))


@lru_cache(maxsize=8192)
def sent(step: HaloStep, rank: int) -> tuple[tuple[int, tuple[HaloPiece, ...]], ...]:
    """Return what ``rank`` sends to each member of its group, in the group's order, itself included."""
    return tuple(_traffic(step, rank, not step.back))


class Room(NamedTuple):
    """A buffer for a rank's block with room around it, which contains the windows of a shift and of the opposite shift."""

    shape: tuple[int, ...]
    block: Index
    windows: Index


@lru_cache(maxsize=4096)
def room_around(step: HaloStep, rank: int) -> Room | None:
    """Return a padded buffer for the elements that go to neighbours or come from them, or None.

    Returns None if windows overlap, if nothing is sent, if a window reads less than half of the rank's block, or if the
    buffer were more than 25 % larger than the block.
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
    """Return ``(before, after)`` for each dimension: padding that a rank's windows need; () for none."""
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
    """Return True if a block with room on both sides is at most 25 % larger than the block."""
    return 4 * math.prod(n + 2 * more for n, more in zip(sizes, reach)) <= 5 * math.prod(sizes)


def _traffic(step: HaloStep, rank: int, blocks: bool) -> Iterator[tuple[int, tuple[HaloPiece, ...]]]:
    """Yield ``(peer, pieces)`` of a rank: as the owner of a block if ``blocks``, else as the reader."""
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
    """Return the rank that has given pieces of some dimensions, and the coordinates of ``rank`` otherwise."""
    coords = dict(zip(mesh.axes, mesh.coords(rank)))
    for axes, number in places:
        for axis in reversed(axes):
            number, coords[axis] = divmod(number, mesh.size_of[axis])
    return mesh.rank_of([*coords.values()])


def elements(traffic: Sequence[tuple[int, Sequence[HaloPiece]]], rank: int) -> int:
    """Return the number of elements that go to other ranks than ``rank``, or come from them."""
    return sum(piece.size for peer, pieces in traffic if peer != rank for piece in pieces)


@lru_cache(maxsize=1024)
def all_halo_received(step: HaloStep) -> np.ndarray:
    """Return the elements that every position of the mesh receives: those that it reads without those that it owns."""
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
    """Return ``(elements, messages)``: elements that the busiest rank receives or sends, and its number of peers."""
    mesh = step.src.mesh
    # Groups differ only in the sizes of other dimensions. Those of the first rank are the largest.
    group = mesh.group(mesh.rank_at(0), *step.axes)
    asked = dict.fromkeys((*group[:ASKED], *group[-ASKED:]))
    ends = [(traffic(step, rank), rank) for rank in asked for traffic in (received, sent)]
    messages = max(sum(peer != rank for peer, _ in traffic) for traffic, rank in ends)
    return max(elements(*end) for end in ends), messages


def halo_bound(src: Layout, dst: Layout, shape: tuple[int, ...]) -> ReceptionBound:
    """Return the lower bound: each element of a rank's target that another rank's source piece has, too, or instead.

    Pieces of windows are contributions that are added up. The bound follows from the layouts, dimension by dimension.
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
    """Return the elements of a rank's piece, as one mask per dimension."""
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
    """Return the step sequences from a base layout to its windows, or back: one dimension at a time, and all at once.

    Unsplit dimensions are part of the first step. One dimension at a time, corners come through a neighbour: fewer messages,
    but a few more bytes for shifted windows.
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
