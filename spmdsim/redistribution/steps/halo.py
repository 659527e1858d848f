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
        """Number of elements that each piece reads, and how many of them are in its own block."""
        return self.lengths, np.array([self._size(k, k) for k in range(self.count)], np.int64)

    @cached_property
    def backward(self) -> tuple[np.ndarray, np.ndarray]:
        """Number of elements of each block that all pieces read, and how many of them its own piece reads."""
        read = [sum(self._size(k, reader) for reader in self.readers(k)) for k in range(self.count)]
        return np.array(read, np.int64), self.forward[1]

    def _size(self, block: int, reader: int) -> int:
        """Return the number of elements of a block that a reader reads."""
        return sum(slice_.stop - slice_.start for _, slice_ in self.read_slices(block, reader))

    def block(self, piece: int) -> tuple[int, int]:
        """Return ``(start, stop)`` of a piece's block of elements."""
        return int(self.blocks.start[piece]), int(self.blocks.stop[piece])

    def reads(self, piece: int) -> range:
        """Return the elements that the window positions of a piece read, as a range; its step may be negative.

        If the window wraps around, they may exceed the dimension; take them modulo ``n``.

        Args:
            piece: the number of the piece.
        """
        return self.window.reads(int(self.positions.start[piece]), int(self.positions.stop[piece]), self.n)

    def sources(self, piece: int) -> list[int]:
        """Return the pieces from whose blocks a piece reads, sorted; possibly the piece itself.

        The list is empty if the piece reads nothing.

        Args:
            piece: the number of the piece, from 0 to :attr:`count` - 1.
        """
        elements = self.reads(piece)
        pieces: set[int] = set()
        for turn in self._turns(elements):
            first, stop = min(elements[0], elements[-1]), max(elements[0], elements[-1]) + 1
            turn_start = turn * self.n
            low, high = max(first, turn_start), min(stop, turn_start + self.n)
            if low < high:
                first_cell, last_cell = self.blocks.cells_in(low - turn_start, high - turn_start)
                pieces.update(self.blocks.piece[first_cell:last_cell].tolist())
        return [source for source in sorted(pieces) if self.read_slices(source, piece)]

    def readers(self, piece: int) -> list[int]:
        """Return the pieces that read from a piece's block, sorted; possibly the piece itself.

        For example, a dimension of 8 elements has 4 blocks of 2, and each position reads its own element and both
        neighbours. The result for piece 0 is [0, 1], because pieces 0 and 1 read from its block. If the dimension is
        a ring, the last piece reads from it, too: [0, 1, 3]. The list is empty if the block is empty or nothing reads
        it.

        Args:
            piece: the number of the piece, from 0 to :attr:`count` - 1.
        """
        start, stop = self.block(piece)
        if start == stop or not self.window.size:
            return []
        pieces: set[int] = set()
        window = self.window
        # All positions that windows read, in the dimension before it is wrapped around.
        reach = range(window.first, (window.size - 1) * window.stride + window.first + window.width)
        for turn in self._turns(reach) if window.wrap else range(1):
            first, last = window.positions_reading(start + turn * self.n, stop + turn * self.n)
            if first < last:
                first_cell, last_cell = self.positions.cells_in(first, last)
                pieces.update(self.positions.piece[first_cell:last_cell].tolist())
        return [reader for reader in sorted(pieces) if self.read_slices(piece, reader)]

    def read_slices(self, block: int, reader: int) -> list[tuple[slice, slice]]:
        """Return the elements of one piece's block that another piece reads, as pairs of slices.

        There is a pair for each run of elements: several if the window wraps around, none without common elements or
        for an empty block. For example, 8 elements are in 2 blocks, and each position also reads its neighbours. Piece
        1 reads elements 3 to 7, so of block 0 it reads element 3: ``[(slice(3, 4, 1), slice(0, 1))]``.

        Args:
            block: the number of the piece that owns the elements.
            reader: the number of the piece that reads them.

        Returns:
            ``(of the block, of the read)`` for each run of elements. The first slice counts from the start of the
            block, the second one in :meth:`reads` of the reader. The first has a negative step if the window reads in
            reverse.
        """
        (start, stop), wanted, slice_pairs = self.block(block), self.reads(reader), []
        for turn in self._turns(wanted) if start < stop else ():
            low, high = start + turn * self.n - wanted.start, stop + turn * self.n - wanted.start
            step = wanted.step
            # The block covers the distances from low to high, counted in elements from the first element that is
            # read. Convert them to indices of the read, from first to end.
            if step > 0:
                first, end = -(-low // step), -(-high // step)
            else:
                first, end = -(-(high - 1) // step), low // step + 1
            first, end = max(0, first), min(len(wanted), end)
            if first < end:
                block_slice = _slice_between(first * step - low, (end - 1) * step - low, step)
                slice_pairs.append((block_slice, slice(first, end)))
        return slice_pairs

    def _turns(self, wanted: range) -> range:
        """Return the range of turns around the dimension that a range of elements covers."""
        if not wanted or not self.n:
            return range(0)
        return range(wanted[0] // self.n, wanted[-1] // self.n + 1) if self.window.wrap else range(1)


dim_of = lru_cache(maxsize=4096)(Dim)


def _slice_between(first: int, last: int, step: int) -> slice:
    """Return the slice of the indices from ``first`` to ``last``, both included; ``step`` may be negative."""
    if step > 0:
        return slice(first, last + 1, step)
    return slice(first, last - 1 if last else None, step)


def _changed_dims(step: HaloStep) -> list[tuple[int, Dim, tuple[str, ...]]]:
    """Return ``(number, dimension, axes)`` of each dimension whose window the step changes.

    These dimensions have a window in the layout with more windows (``step.windowed``) and none in the other one.
    ``axes`` are those that split the dimension; () if it is not split.

    Args:
        step: the halo exchange.
    """
    before = step.unwindowed.windows if isinstance(step.unwindowed, Windowed) else (None,) * len(step.shape)
    return [
        (d, dim_of(window, step.shape[d], block_counts(step.src.mesh, entry)), entry)
        for d, (window, old, entry) in enumerate(zip(step.windowed.windows, before, step.windowed.dims))
        if window is not None and old is None
    ]


def _piece_number(mesh: Mesh, axes: tuple[str, ...], rank: int) -> int:
    """Return the number of a rank's piece of a dimension that ``axes`` split."""
    coords, number = mesh.coords(rank), 0
    for axis in axes:
        number = number * mesh.size_of[axis] + coords[mesh.axis_index(axis)]
    return number


def _list_boxes(step: HaloStep, sizes: Sequence[int], ends: dict[int, tuple[int, int]]) -> list[HaloPiece]:
    """Return the boxes that go from one rank to another, or stay on a rank.

    A box combines a run of elements of each dimension (:meth:`Dim.read_slices`); two dimensions with 2 runs each give 4
    boxes. It has the slices in the source shard and in the target shard: the block is the source, and what is read is
    the target; in steps back to blocks (``step.back``), the reverse. Empty boxes are left out.

    Args:
        step: the step.
        sizes: the lengths of the shard; those of dimensions that change are not used.
        ends: ``(block, reader)`` for each split dimension that changes: the pieces of the rank that owns the elements
            as a block and of the rank that reads them. Dimensions left out have one piece.
    """
    options: list[Sequence[tuple[slice, slice]]] = [[(slice(0, n), slice(0, n))] for n in sizes]
    for d, dim, _ in _changed_dims(step):
        options[d] = dim.read_slices(*ends.get(d, (0, 0)))
    boxes = []
    for slice_pairs in product(*options):
        size = math.prod(read_slice.stop - read_slice.start for _, read_slice in slice_pairs)
        if size:
            in_block = tuple([block_slice for block_slice, _ in slice_pairs])
            in_read = tuple([read_slice for _, read_slice in slice_pairs])
            boxes.append(
                HaloPiece(in_read, in_block, size) if step.back else HaloPiece(in_block, in_read, size)
            )
    return boxes


@lru_cache(maxsize=8192)
def received_boxes(step: HaloStep, rank: int) -> tuple[tuple[int, tuple[HaloPiece, ...]], ...]:
    """Return ``(member, boxes)``: the boxes that ``rank`` receives from each member of its group.

    They are in the group's order. The rank's own boxes are included.
    """
    return tuple(_list_traffic(step, rank, step.back))


@lru_cache(maxsize=8192)
def sent_boxes(step: HaloStep, rank: int) -> tuple[tuple[int, tuple[HaloPiece, ...]], ...]:
    """Return ``(member, boxes)``: the boxes that ``rank`` sends to each member of its group.

    They are in the group's order. The rank's own boxes are included.
    """
    return tuple(_list_traffic(step, rank, not step.back))


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
    """Return a buffer with room around a rank's block for the windows of shifts, or None.

    A shift reads one element per position (width and stride 1). In the buffer, the shifted windows are a view, so the
    block need not be copied. For example, a rank has 40 of 80 elements, and the shift is by 1: the buffer has 4
    elements of room on both sides, and the windows are the slice 5:45. Results are cached. None if

    - the step goes from windows back to blocks, or changes a window that is no shift,
    - the rank neither sends nor receives,
    - the elements of the block that the rank reads itself are not one box, or less than half of the block,
    - the buffer would be more than 25 % larger than the block.

    Args:
        step: the halo exchange.
        rank: a rank of its mesh.
    """
    incoming, outgoing, changed = received_boxes(step, rank), sent_boxes(step, rank), _changed_dims(step)
    are_shifts = all(dim.window.width == dim.window.stride == 1 for _, dim, _ in changed)
    if step.back or not are_shifts or not moved_elements((*incoming, *outgoing), rank):
        return None
    sizes, window_sizes = (layout.local_shape(step.shape, rank) for layout in (step.src, step.dst))
    own_boxes = [piece for peer, pieces in incoming if peer == rank for piece in pieces]
    if len(own_boxes) != 1 or 2 * own_boxes[0].size < math.prod(sizes):
        return None
    # The windows begin this number of elements after the block, per dimension.
    own_box = own_boxes[0]
    offsets = [in_block.start - in_read.start for in_block, in_read in zip(own_box.source, own_box.target)]
    leaving_boxes = [piece for peer, pieces in outgoing if peer != rank for piece in pieces]
    least_margins = [0] * len(sizes)
    for d, dim, _ in changed:
        if dim.count > 1:
            before, after = -offsets[d], offsets[d] + window_sizes[d] - sizes[d]
            # The opposite shift receives as many elements as leave now.
            leaving_lengths = [piece.source[d].stop - piece.source[d].start for piece in leaving_boxes]
            least_margins[d] = max(0, before, after, *leaving_lengths)
    margins = _choose_margins(sizes, least_margins)
    if margins is None:
        return None
    shape = tuple(n + 2 * margin for n, margin in zip(sizes, margins))
    block = tuple(slice(margin, margin + n) for n, margin in zip(sizes, margins))
    starts = [margin + offset for margin, offset in zip(margins, offsets)]
    return Room(shape, block, tuple(slice(start, start + n) for start, n in zip(starts, window_sizes)))


def _choose_margins(sizes: Sequence[int], least_margins: Sequence[int]) -> Sequence[int] | None:
    """Return the room on each side of a block per dimension, or None if it is too much.

    Each needed room other than 0 is rounded up to a power of two of at least :data:`ROOM` (4): 0, 1 and 5 become 0, 4
    and 8. If the padded block is then more than 25 % larger than the block, ``least_margins`` is tried for all
    dimensions.
    """
    rounded_margins = [margin and max(ROOM, 1 << (margin - 1).bit_length()) for margin in least_margins]
    for margins in (rounded_margins, least_margins):
        if _is_small_padding(sizes, margins):
            return margins
    return None


@lru_cache(maxsize=4096)
def window_padding(step: HaloStep, rank: int) -> tuple[tuple[int, int], ...]:
    """Return the padding of a rank's windows, ``(before, after)`` for each dimension.

    Both count positions outside of the dimension, before its first and after its last element, that the rank's windows
    read. The caller fills them in. Windows that wrap around need none. Return () in three cases: no window of the rank
    needs padding, the rank is outside of the target mesh, or the step goes from windows to blocks (``step.back``).
    Results are cached.

    Args:
        step: the halo exchange.
        rank: the rank.
    """
    windows, shape = step.windowed.windows, step.shape
    if step.back or rank not in step.dst.mesh or not any(window and window.padded for window in windows):
        return ()
    positions_per_dim = [n if window is None else window.size for n, window in zip(shape, windows)]
    bounds = step.windowed.base.bounds(positions_per_dim, rank)
    margins = tuple(
        window.beyond(start, stop, n) if window and window.padded else (0, 0)
        for window, (start, stop), n in zip(windows, bounds, shape)
    )
    return margins if any(map(any, margins)) else ()


def _is_small_padding(sizes: Sequence[int], margins: Sequence[int]) -> bool:
    """Return True if a block with room on both sides is at most 25 % larger than the block."""
    return 4 * math.prod(n + 2 * margin for n, margin in zip(sizes, margins)) <= 5 * math.prod(sizes)


def _list_traffic(step: HaloStep, rank: int, blocks: bool) -> Iterator[tuple[int, tuple[HaloPiece, ...]]]:
    """Yield ``(peer, boxes)`` for each rank with which ``rank`` has elements in common.

    ``rank`` itself is included; peers without boxes are left out. For example, 8 elements are in 2 blocks, and each
    position also reads its neighbours. Rank 0's block gives its elements 0-3 to itself, and element 3 to rank 1.
    Nothing is yielded for a rank outside of the mesh.

    Args:
        step: the step.
        rank: the rank.
        blocks: True if ``rank`` owns the elements as a block and the peer reads them; False for the reverse.
    """
    mesh = step.src.mesh
    if rank not in mesh:
        return
    split_dims = [(d, dim, axes) for d, dim, axes in _changed_dims(step) if dim.count > 1]
    sizes = step.unwindowed.local_shape(step.shape, rank)
    own_numbers = [_piece_number(mesh, axes, rank) for _, _, axes in split_dims]
    peer_options = [
        dim.readers(number) if blocks else dim.sources(number)
        for (_, dim, _), number in zip(split_dims, own_numbers)
    ]
    for peer_numbers in product(*peer_options):
        block_numbers, reader_numbers = (own_numbers, peer_numbers) if blocks else (peer_numbers, own_numbers)
        number_pairs = {d: pair for (d, _, _), pair in zip(split_dims, zip(block_numbers, reader_numbers))}
        boxes = _list_boxes(step, sizes, number_pairs)
        if boxes:
            numbers_by_axes = [(axes, number) for (_, _, axes), number in zip(split_dims, peer_numbers)]
            yield _find_peer(mesh, rank, numbers_by_axes), tuple(boxes)


def _find_peer(mesh: Mesh, rank: int, numbers: Sequence[tuple[tuple[str, ...], int]]) -> int:
    """Return the rank that has the coordinates of ``rank`` but other pieces of some dimensions.

    For example, on a 2 x 4 mesh with axes a and b, the peer of rank 1 with piece 3 of a dimension that b splits is rank
    3.
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
    """Return the number of elements that every position of the mesh receives, as an int64 array.

    - From blocks to windows: the elements that the rank reads and does not own. If 8 elements are in 2 blocks, and each
      position also reads its neighbours, each rank receives 1.
    - From windows to blocks (``step.back``): the contributions of other ranks to the rank's block.

    Both are products over the dimensions; dimensions that the step does not change count with their length. Results are
    cached; the caller must not change the array.

    Args:
        step: the step.
    """
    mesh, changed = step.src.mesh, {d: dim for d, dim, _ in _changed_dims(step)}
    read, owned = np.ones(mesh.size, np.int64), np.ones(mesh.size, np.int64)
    for d, entry in enumerate(step.src.dims):
        number = piece_numbers(mesh, entry)
        if d in changed:
            counts = changed[d].backward if step.back else changed[d].forward
            read, owned = read * counts[0][number], owned * counts[1][number]
        else:
            window = step.unwindowed.windows[d] if isinstance(step.unwindowed, Windowed) else None
            dim = dim_of(window or Window(step.shape[d]), step.shape[d], block_counts(mesh, entry))
            lengths = dim.lengths[number]
            read, owned = read * lengths, owned * lengths
    missing: np.ndarray = read - owned
    return missing


@lru_cache(maxsize=1024)
def busiest_halo(step: HaloStep) -> tuple[int, int]:
    """Return the most elements that a rank receives or sends, and the most peers of a rank.

    Only the group of the mesh's first rank is counted, because its shards are the largest; and in it only the first and
    the last :data:`ASKED` (128) ranks. The peers of a rank are those from which it receives or those to which it sends,
    whichever are more.

    Args:
        step: the step; its collective must not be local.

    Returns:
        ``(elements, peers)``, cached.
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
    """Return the lower bound of a redistribution from or to a layout with windows.

    The bound of a rank is the number of elements that it needs and must receive. It need not receive an element that
    only its own source has. An element that windows of several ranks contain is a sum of their values; so each rank
    that needs it must receive it. For example, 8 elements are in 2 blocks, and windows add the neighbouring elements:
    each rank must receive 1 element, to the windows as well as back.

    Args:
        src: the layout before.
        dst: the layout after; its mesh has the ranks of the source mesh.
        shape: the global shape.

    Returns:
        ``(busiest, total, ranks)``: the largest bound, the sum, and the bound of each position of the target mesh. A
        bound is the number of needed elements minus the number of needed elements that only the rank's own source
        has. Both are products over the dimensions.
    """
    # All groups along the axes of a dimension have the same blocks of it, so count the contributors in one group.
    groups = [src.mesh.group(src.mesh.rank_at(0), *entry) for entry in src.dims]
    contributor_counts = [
        sum(_element_masks(src, rank, shape)[d].astype(int) for rank in group)
        for d, group in enumerate(groups)
    ]
    counts = []
    for rank in dst.mesh.rank_list:
        owned_masks, wanted_masks = _element_masks(src, rank, shape), _element_masks(dst, rank, shape)
        dims = [*zip(contributor_counts, owned_masks, wanted_masks)]
        available = math.prod([np.count_nonzero(wanted & (count > 0)) for count, _, wanted in dims])
        own_only = math.prod(
            [np.count_nonzero(wanted & owned & (count == 1)) for count, owned, wanted in dims]
        )
        counts.append(available - own_only)
    return ReceptionBound.of_each(np.array(counts, np.int64))


def _element_masks(layout: Layout, rank: int, shape: tuple[int, ...]) -> list[np.ndarray]:
    """Return the elements that a rank owns or reads, as one mask per dimension.

    The rank has the elements whose indices are True in all masks. Elements of windows that wrap around are taken modulo
    the size.

    Args:
        layout: the layout.
        rank: a rank of its mesh.
        shape: the global shape; each mask has the length of its dimension.
    """
    if isinstance(layout, Windowed):
        ranges = layout.reads(shape, rank)
    else:
        ranges = tuple(range(start, stop) for start, stop in layout.bounds(shape, rank))
    masks = [np.zeros(n, bool) for n in shape]
    for mask, elements in zip(masks, ranges):
        indices = np.arange(elements.start, elements.stop, elements.step)
        mask[indices % max(len(mask), 1)] = True
    return masks


# -- plans ----------------------------------------------------------------------------------------------


def _build_step(
    src: Layout, dst: Layout, shape: tuple[int, ...], axes: tuple[str, ...], back: bool
) -> HaloStep:
    """Return the step between two layouts; a step :data:`WINDOW` if nothing is sent."""
    name, op = HALO_REDUCE if back else HALO_EXCHANGE, "sum" if back else None
    step = HaloStep(name, axes, src, dst, shape, op, back=back)
    return step if axes and all_halo_received(step).any() else replace(step, collective=WINDOW)


@lru_cache(maxsize=4096)
def build_halo_steps(
    windowed: Windowed, shape: tuple[int, ...], back: bool = False
) -> list[tuple[HaloStep, ...]]:
    """Return one or two sequences of steps from the blocks of a layout to its windows, or back.

    1. One split dimension at a time, so corners come through a neighbour: fewer messages, but a few more bytes for
    shifted windows. 2. All split dimensions at once. This sequence exists if several dimensions with windows are split.

    Unsplit dimensions are part of the first step to windows. A step that sends nothing has the collective
    :data:`WINDOW`. Results are cached; the caller must not change the list.

    Args:
        windowed: the layout with windows.
        shape: the global shape.
        back: True for the steps from windows to blocks, in reverse order.
    """
    changed = [d for d, window in enumerate(windowed.windows) if window]
    split = [d for d in changed if windowed.base.parts[d] > 1]
    one_by_one = [[d] for d in split] or [[]]
    sequences = [_build_steps(windowed, shape, back, one_by_one)]
    return [*sequences, _build_steps(windowed, shape, back, [split])] if len(split) > 1 else sequences


def _build_steps(
    windowed: Windowed, shape: tuple[int, ...], back: bool, order: list[list[int]]
) -> tuple[HaloStep, ...]:
    """Return the steps that build the windows of a layout, or add them up to blocks if ``back``.

    For example, ``order`` [[0], [1]] builds the windows of dimension 0 first and then those of dimension 1, [[0, 1]]
    both in one step. With ``back``, the steps are the reverse, the last one first.

    Args:
        windowed: the layout with windows.
        shape: the global shape.
        back: True for the steps from windows to blocks: the steps to windows in reverse.
        order: for each step to windows, the split dimensions whose windows it builds; [[]] if none is split.
    """
    base, unfinished = windowed.base, {d for dims in order for d in dims}
    before: Layout = base
    steps = []
    for dims in order:
        unfinished -= {*dims}
        after = Windowed(base, [None if d in unfinished else w for d, w in enumerate(windowed.windows)])
        axes = tuple(axis for d in dims for axis in base.dims[d])
        steps.append(
            _build_step(after, before, shape, axes, True)
            if back
            else _build_step(before, after, shape, axes, False)
        )
        before = after
    return tuple(steps[::-1] if back else steps)
