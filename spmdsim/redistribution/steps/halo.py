"""Exchange halos: each rank receives the elements that its window reads and that it does not own.

A step turns the blocks of one split dimension into windows (:class:`~spmdsim.layout.windowed_layout.Windowed`), along
the axes that split it, together with unsplit dimensions. Several split dimensions take several steps, so that corners
come through a neighbour. The reverse step adds contributions up; gradients use it. The transfers of one rank follow
from the cuts of blocks and positions in constant time.

A *piece* of a dimension is the block of elements, or the block of window positions, that one coordinate on its axes
owns.
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
from spmdsim.redistribution.grid import block_counts, cuts, piece_numbers
from spmdsim.redistribution.steps.counted_step import CountedStep

HALO_EXCHANGE, HALO_REDUCE = "halo_exchange", "halo_reduce"
#: The name of a step that sends nothing: each window reads its rank's own block only.
WINDOW = "window"
#: The number of ranks at each end of a group that are compared to find the busiest one.
ASKED = 128
#: The smallest room around a block, in elements. Rooms are powers of two, so that similar slices share a buffer.
ROOM = 4


class HaloPiece(NamedTuple):
    """Box of elements that goes from one rank's array to another rank's array.

    Attributes:
        source: the slices of the sender's array.
        target: the slices of the receiver's array.
        size: the number of elements.
    """

    source: Index
    target: Index
    size: int


@dataclass(frozen=True)
class HaloStep(CountedStep):
    """Step from blocks to windows or, if ``back``, from windows to blocks.

    On the way back contributions are added up, and elements without any are zero.
    """

    back: bool = field(default=False, kw_only=True)

    def received_elements(self, rank: int) -> int:
        """Return the number of elements that ``rank`` receives from others."""
        return 0 if self.collective in LOCAL_STEPS else moved_elements(received_boxes(self, rank), rank)

    def sent_elements(self, rank: int) -> int:
        """Return the number of elements that ``rank`` sends to others."""
        return 0 if self.collective in LOCAL_STEPS else moved_elements(sent_boxes(self, rank), rank)

    @property
    def received_by_position(self) -> np.ndarray:
        """Elements that each position of the mesh receives."""
        return all_halo_received(self)

    @property
    def most_moved(self) -> int:
        """Elements that the busiest rank receives or sends."""
        return busiest_halo(self)[0]

    @property
    def most_messages(self) -> int:
        """Number of peers of the busiest rank."""
        return busiest_halo(self)[1]

    @property
    def windowed(self) -> Windowed:
        """Layout with more windows: that after the step, or before it on the way back."""
        layout = self.src if self.back else self.dst
        assert isinstance(layout, Windowed)
        return layout

    @property
    def unwindowed(self) -> Layout:
        """Layout with fewer windows."""
        return self.dst if self.back else self.src


class Dim:
    """Dimension of ``n`` elements with a window, cut into pieces.

    Each piece has a block of elements and a block of window positions.

    Args:
        window: the window.
        n: the number of elements.
        parts: the number of blocks of each nested cut.
    """

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
        """Number of elements that each piece reads, and the number of those in its own block."""
        return self.lengths, np.array([self._size(k, k) for k in range(self.count)], np.int64)

    @cached_property
    def backward(self) -> tuple[np.ndarray, np.ndarray]:
        """Number of elements of each block that pieces read, and the number of those that its own piece reads."""
        read = [sum(self._size(k, reader) for reader in self.readers(k)) for k in range(self.count)]
        return np.array(read, np.int64), self.forward[1]

    def _size(self, block: int, reader: int) -> int:
        """Return the number of elements of a block that a reader reads."""
        return sum(slice_.stop - slice_.start for _, slice_ in self.read_slices(block, reader))

    def block(self, piece: int) -> tuple[int, int]:
        """Return ``(start, stop)`` of a piece's block of elements."""
        return int(self.blocks.start[piece]), int(self.blocks.stop[piece])

    def reads(self, piece: int) -> range:
        """Return the elements that the positions of a piece read.

        If the window wraps around, they may exceed the dimension.
        """
        return self.window.reads(int(self.positions.start[piece]), int(self.positions.stop[piece]), self.n)

    def sources(self, piece: int) -> list[int]:
        """Return the pieces from whose blocks this piece reads, sorted; possibly the piece itself."""
        wanted, pieces = self.reads(piece), set()
        for turn in self._turns(wanted):
            limits = min(wanted[0], wanted[-1]), max(wanted[0], wanted[-1]) + 1
            low, high = max(limits[0], turn * self.n), min(limits[1], (turn + 1) * self.n)
            if low < high:
                a, b = self.blocks.cells_in(low - turn * self.n, high - turn * self.n)
                pieces.update(self.blocks.piece[a:b].tolist())
        return [piece_ for piece_ in sorted(pieces) if self.read_slices(piece_, piece)]

    def readers(self, piece: int) -> list[int]:
        """Return the pieces that read from this piece's block, sorted; possibly the piece itself."""
        (start, stop), pieces = self.block(piece), set()
        if start == stop or not self.window.size:
            return []
        window = self.window
        reach = range(window.first, (window.size - 1) * window.stride + window.first + window.width)
        for turn in self._turns(reach) if window.wrap else range(1):
            a, b = window.positions_reading(start + turn * self.n, stop + turn * self.n)
            if a < b:
                first, last = self.positions.cells_in(a, b)
                pieces.update(self.positions.piece[first:last].tolist())
        return [reader for reader in sorted(pieces) if self.read_slices(piece, reader)]

    def read_slices(self, block: int, reader: int) -> list[tuple[slice, slice]]:
        """Return the elements of a block that a reader reads, as pairs of slices.

        The first slice is one of the block, the second one of the elements that the reader reads. There are several
        pairs if the window wraps around.
        """
        (start, stop), wanted, slice_pairs = self.block(block), self.reads(reader), []
        for turn in self._turns(wanted) if start < stop else ():
            low, high = start + turn * self.n - wanted.start, stop + turn * self.n - wanted.start
            step = wanted.step
            # The indices of the elements from low to high, counted from the first element that is read.
            i, j = (
                (-(-low // step), -(-high // step)) if step > 0 else (-(-(high - 1) // step), low // step + 1)
            )
            i, j = max(0, i), min(len(wanted), j)
            if i < j:
                first_offset, last_offset = i * step - low, (j - 1) * step - low
                slice_pairs.append(
                    (
                        slice(
                            first_offset,
                            last_offset + 1 if step > 0 else last_offset - 1 if last_offset else None,
                            step,
                        ),
                        slice(i, j),
                    )
                )
        return slice_pairs

    def _turns(self, wanted: range) -> range:
        """Return the range of turns around the dimension that a range of elements covers."""
        if not wanted or not self.n:
            return range(0)
        return range(wanted[0] // self.n, wanted[-1] // self.n + 1) if self.window.wrap else range(1)


dim_of = lru_cache(maxsize=4096)(Dim)


def _changed(step: HaloStep) -> list[tuple[int, Dim, tuple[str, ...]]]:
    """Return ``(dimension, cuts, axes)`` of the dimensions that get windows or lose them."""
    before = step.unwindowed.windows if isinstance(step.unwindowed, Windowed) else (None,) * len(step.shape)
    return [
        (d, dim_of(window, step.shape[d], block_counts(step.src.mesh, entry)), entry)
        for d, (window, old, entry) in enumerate(zip(step.windowed.windows, before, step.windowed.dims))
        if window is not None and old is None
    ]


def _number(mesh: Mesh, axes: tuple[str, ...], rank: int) -> int:
    """Return the number of a rank's piece of a dimension that ``axes`` split."""
    coords, number = mesh.coords(rank), 0
    for axis in axes:
        number = number * mesh.size_of[axis] + coords[mesh.axis_index(axis)]
    return number


def _pieces(step: HaloStep, sizes: Sequence[int], ends: dict[int, tuple[int, int]]) -> list[HaloPiece]:
    """Return the boxes of a block that a reader reads.

    Args:
        step: the step.
        sizes: the shard's length in dimensions that do not change.
        ends: ``(block, reader)`` of the split dimensions that change.
    """
    options: list[Sequence[tuple[slice, slice]]] = [[(slice(0, n), slice(0, n))] for n in sizes]
    for d, dim, _ in _changed(step):
        options[d] = dim.read_slices(*ends.get(d, (0, 0)))
    out = []
    for chosen in product(*options):
        size = math.prod(slice_.stop - slice_.start for _, slice_ in chosen)
        if size:
            source, target = tuple(a for a, _ in chosen), tuple(b for _, b in chosen)
            out.append(HaloPiece(target, source, size) if step.back else HaloPiece(source, target, size))
    return out


@lru_cache(maxsize=8192)
def received_boxes(step: HaloStep, rank: int) -> tuple[tuple[int, tuple[HaloPiece, ...]], ...]:
    """Return ``(member, boxes)``: the boxes that ``rank`` receives from each member of its group.

    They are in the group's order. The rank's own boxes are included.
    """
    return tuple(_traffic(step, rank, step.back))


@lru_cache(maxsize=8192)
def sent_boxes(step: HaloStep, rank: int) -> tuple[tuple[int, tuple[HaloPiece, ...]], ...]:
    """Return ``(member, boxes)``: the boxes that ``rank`` sends to each member of its group.

    They are in the group's order. The rank's own boxes are included.
    """
    return tuple(_traffic(step, rank, not step.back))


class Room(NamedTuple):
    """Buffer with room around a rank's block, for the windows of a shift and of the opposite shift.

    Attributes:
        shape: the shape of the buffer.
        block: the slices of the block.
        windows: the slices of the windows.
    """

    shape: tuple[int, ...]
    block: Index
    windows: Index


@lru_cache(maxsize=4096)
def padded_buffer(step: HaloStep, rank: int) -> Room | None:
    """Return a padded buffer for the elements that go to neighbours or come from them, or None.

    It returns None if windows overlap, if nothing is sent, if a window reads less than half of the rank's block, on
    the way back, or if the buffer would be more than 25 % larger than the block.
    """
    incoming, outgoing, changed = received_boxes(step, rank), sent_boxes(step, rank), _changed(step)
    own_boxes = [piece for peer, pieces in incoming if peer == rank for piece in pieces]
    shifted = not step.back and all(dim.window.width == dim.window.stride == 1 for _, dim, _ in changed)
    if not shifted or len(own_boxes) != 1 or not moved_elements((*incoming, *outgoing), rank):
        return None
    sizes, read = (layout.local_shape(step.shape, rank) for layout in (step.src, step.dst))
    leaving_boxes = [piece for peer, pieces in outgoing if peer != rank for piece in pieces]
    margins, first = (
        [0] * len(sizes),
        [a.start - b.start for a, b in zip(own_boxes[0].source, own_boxes[0].target)],
    )
    for d in (d for d, dim, _ in changed if dim.count > 1):
        overhang = (-first[d], first[d] + read[d] - sizes[d])
        margins[d] = max(
            0, *overhang, *[piece.source[d].stop - piece.source[d].start for piece in leaving_boxes]
        )
    rounded_margins = [margin and max(ROOM, 1 << (margin - 1).bit_length()) for margin in margins]
    margins = next(
        (candidate for candidate in (rounded_margins, margins) if _is_small_padding(sizes, candidate)), []
    )
    if 2 * own_boxes[0].size < math.prod(sizes) or not margins:
        return None
    shape = tuple(n + 2 * margin for n, margin in zip(sizes, margins))
    block = tuple(slice(margin, margin + n) for n, margin in zip(sizes, margins))
    return Room(shape, block, tuple(slice(m + a, m + a + n) for n, m, a in zip(read, margins, first)))


@lru_cache(maxsize=4096)
def margins_around(step: HaloStep, rank: int) -> tuple[tuple[int, int], ...]:
    """Return ``(before, after)`` for each dimension: the padding of a rank's windows.

    Empty if no window needs padding.
    """
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


def _is_small_padding(sizes: Sequence[int], margins: Sequence[int]) -> bool:
    """Return True if a block with room on both sides is at most 25 % larger than the block."""
    return 4 * math.prod(n + 2 * margin for n, margin in zip(sizes, margins)) <= 5 * math.prod(sizes)


def _traffic(step: HaloStep, rank: int, blocks: bool) -> Iterator[tuple[int, tuple[HaloPiece, ...]]]:
    """Yield ``(peer, boxes)`` of a rank: as the owner of a block if ``blocks``, else as the reader."""
    mesh = step.src.mesh
    if rank not in mesh:
        return
    split = [(d, dim, entry) for d, dim, entry in _changed(step) if dim.count > 1]
    sizes, own_numbers = (
        step.unwindowed.local_shape(step.shape, rank),
        [_number(mesh, e, rank) for _, _, e in split],
    )
    for peer_numbers in product(
        *[
            (dim.readers if blocks else dim.sources)(own_number)
            for (_, dim, _), own_number in zip(split, own_numbers)
        ]
    ):
        ends = {
            d: (own_number, number) if blocks else (number, own_number)
            for (d, _, _), own_number, number in zip(split, own_numbers, peer_numbers)
        }
        pieces = _pieces(step, sizes, ends)
        if pieces:
            yield (
                _peer(mesh, rank, [(e, number) for (_, _, e), number in zip(split, peer_numbers)]),
                tuple(pieces),
            )


def _peer(mesh: Mesh, rank: int, numbers: Sequence[tuple[tuple[str, ...], int]]) -> int:
    """Return the rank that has other pieces of some dimensions than ``rank``, and else its coordinates.

    ``numbers`` has, for each of these dimensions, its axes and the number of the piece.
    """
    coords = dict(zip(mesh.axes, mesh.coords(rank)))
    for axes, number in numbers:
        for axis in reversed(axes):
            number, coords[axis] = divmod(number, mesh.size_of[axis])
    return mesh.rank_of([*coords.values()])


def moved_elements(traffic: Sequence[tuple[int, Sequence[HaloPiece]]], rank: int) -> int:
    """Return the number of elements that go to other ranks than ``rank``, or come from them."""
    return sum(piece.size for peer, pieces in traffic if peer != rank for piece in pieces)


@lru_cache(maxsize=1024)
def all_halo_received(step: HaloStep) -> np.ndarray:
    """Return the number of elements that every position of the mesh receives.

    These are the elements that it reads and does not own.
    """
    mesh, changed = step.src.mesh, {d: dim for d, dim, _ in _changed(step)}
    read, owned = np.ones(mesh.size, np.int64), np.ones(mesh.size, np.int64)
    for d, entry in enumerate(step.src.dims):
        number = piece_numbers(mesh, entry)
        if d in changed:
            counts = changed[d].backward if step.back else changed[d].forward
            read, owned = read * counts[0][number], owned * counts[1][number]
        else:
            window = step.unwindowed.windows[d] if isinstance(step.unwindowed, Windowed) else None
            sizes = dim_of(window or Window(step.shape[d]), step.shape[d], block_counts(mesh, entry)).lengths[
                number
            ]
            read, owned = read * sizes, owned * sizes
    missing: np.ndarray = read - owned
    return missing


@lru_cache(maxsize=1024)
def busiest_halo(step: HaloStep) -> tuple[int, int]:
    """Return the elements that the busiest rank receives or sends, and its number of peers.

    In large groups, only the first and the last :data:`ASKED` ranks are compared.
    """
    mesh = step.src.mesh
    # Groups differ only in the sizes of other dimensions, which are largest in the group of the first rank.
    group = mesh.group(mesh.rank_at(0), *step.axes)
    sampled_ranks = dict.fromkeys((*group[:ASKED], *group[-ASKED:]))
    traffics = [
        (traffic(step, rank), rank) for rank in sampled_ranks for traffic in (received_boxes, sent_boxes)
    ]
    messages = max(sum(peer != rank for peer, _ in traffic) for traffic, rank in traffics)
    return max(moved_elements(*end) for end in traffics), messages


def halo_bound(src: Layout, dst: Layout, shape: tuple[int, ...]) -> ReceptionBound:
    """Return the lower bound: the elements of a rank's target that it must receive.

    These are the elements that another rank's source has, except those that only this rank has. Boxes of windows are
    contributions that are added up. The bound follows from the layouts, dimension by dimension.
    """
    groups = [src.mesh.group(src.mesh.rank_at(0), *entry) for entry in src.dims]
    pieces = [
        sum(_element_masks(src, rank, shape)[d].astype(int) for rank in group)
        for d, group in enumerate(groups)
    ]
    counts = []
    for rank in dst.mesh.rank_list:
        dims = [*zip(pieces, _element_masks(src, rank, shape), _element_masks(dst, rank, shape))]
        available = math.prod([np.count_nonzero(wanted & (count > 0)) for count, _, wanted in dims])
        own_only = math.prod(
            [np.count_nonzero(wanted & owned & (count == 1)) for count, owned, wanted in dims]
        )
        counts.append(available - own_only)
    return ReceptionBound.of_each(np.array(counts, np.int64))


def _element_masks(layout: Layout, rank: int, shape: tuple[int, ...]) -> list[np.ndarray]:
    """Return the elements that a rank owns or reads, as one mask per dimension."""
    masks = [np.zeros(n, bool) for n in shape]
    blocks = (range(*ends) for ends in layout.bounds(shape, rank))
    for mask, elements_range in zip(
        masks, layout.reads(shape, rank) if isinstance(layout, Windowed) else blocks
    ):
        mask[
            np.arange(elements_range.start, elements_range.stop, elements_range.step) % max(len(mask), 1)
        ] = True
    return masks


# -- plans ----------------------------------------------------------------------------------------------


def _step(src: Layout, dst: Layout, shape: tuple[int, ...], axes: tuple[str, ...], back: bool) -> HaloStep:
    """Return the step between two layouts; a step :data:`WINDOW` if nothing is sent."""
    name, op = HALO_REDUCE if back else HALO_EXCHANGE, "sum" if back else None
    step = HaloStep(name, axes, src, dst, shape, op, back=back)
    return step if axes and all_halo_received(step).any() else replace(step, collective=WINDOW)


@lru_cache(maxsize=4096)
def steps_to(windowed: Windowed, shape: tuple[int, ...], back: bool = False) -> list[tuple[HaloStep, ...]]:
    """Return the step sequences from a base layout to its windows, or back.

    The first sequence takes one dimension at a time, the second one, if several dimensions are split, all at once.
    Unsplit dimensions are part of the first step. One dimension at a time, corners come through a neighbour: fewer
    messages, but a few more bytes for shifted windows.
    """
    changed = [d for d, window in enumerate(windowed.windows) if window]
    split = [d for d in changed if windowed.base.parts[d] > 1]
    one_by_one = [[d] for d in split] or [[]]
    sequences = [_steps(windowed, shape, back, one_by_one)]
    return [*sequences, _steps(windowed, shape, back, [split])] if len(split) > 1 else sequences


def _steps(
    windowed: Windowed, shape: tuple[int, ...], back: bool, order: list[list[int]]
) -> tuple[HaloStep, ...]:
    """Return the steps that build the windows of some dimensions after others, or reduce them if ``back``.

    ``order`` has the split dimensions of each step.
    """
    base, unfinished = windowed.base, {d for dims in order for d in dims}
    before: Layout = base
    steps = []
    for dims in order:
        unfinished -= {*dims}
        after = Windowed(base, [None if d in unfinished else w for d, w in enumerate(windowed.windows)])
        axes = tuple(axis for d in dims for axis in base.dims[d])
        steps.append(
            _step(after, before, shape, axes, True) if back else _step(before, after, shape, axes, False)
        )
        before = after
    return tuple(steps[::-1] if back else steps)
