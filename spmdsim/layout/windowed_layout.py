"""Describe the elements that a slice, a stencil or a convolution reads of a split dimension.

A dimension of the result is split in balanced blocks, like any other. A :class:`Window` says which elements of the
operand the positions of a block read. A slice is a window with a shift; a halo is a window wider than its stride.
:class:`Windowed` is the layout whose shards are the elements that the windows read, so its shards can be shifted and
can overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spmdsim.core.layout import Bounds, Layout, largest_block, split_block
from spmdsim.errors import many


@dataclass(frozen=True)
class Window:
    """The elements of a dimension that the positions of a result read.

    Position ``i`` reads ``width`` elements, from ``i * stride + first`` on.

    Attributes:
        size: number of positions.
        first: first element that position 0 reads. Elements outside of the dimension (before 0, beyond the last) are
            not read.
        width: number of elements that each position reads.
        stride: distance between the first elements of two consecutive positions; negative if the elements are read in
            reverse (``width`` is then 1).
        wrap: True if the dimension is a ring: element -1 is the last element, and the element after the last one is
            element 0.
        spread: if above 1, only every ``spread``-th position reads an element. Position ``i`` reads element
            ``(i + first) / spread`` if that is an integer, else none. ``width`` and ``stride`` are then 1.
        padded: True if the caller fills in values for elements outside of the dimension, so that a buffer needs space
            for them.
        mirror: "reflect" or "symmetric", as in numpy.pad, if elements outside of the dimension are filled with
            mirrored ones. A shard then has these elements, too, although they can lie further inside than its
            windows. Empty if not.
    """

    size: int
    first: int = 0
    width: int = 1
    stride: int = 1
    wrap: bool = False
    spread: int = 1
    padded: bool = False
    mirror: str = ""

    def __str__(self) -> str:
        by = f" by {self.stride}" if self.stride > 1 else f" by 1/{self.spread}" if self.spread > 1 else ""
        return f"{many(self.size, 'window')} of {self.width} from {self.first}{by}{', wrapped' if self.wrap else ', mirrored' if self.mirror else ''}"

    @property
    def step(self) -> int:
        """Distance between two elements that are read: the stride if ``width`` is 1, else 1."""
        return self.stride if self.width == 1 else 1

    def reads(self, start: int, stop: int, n: int) -> range:
        """Return the elements that positions ``start`` to ``stop - 1`` read, as one range.

        A position is an element of the result; it reads a window of elements of a dimension. For example, with windows of 3
        elements from -1 on, positions 0 to 2 read elements -1 to 3; element -1 does not exist, so the result is
        ``range(0, 4)``. Cases:

        - If each position reads one element, the step of the range is the stride, which is negative for reading in reverse.
          Otherwise the step is 1.
        - Elements outside of the dimension are left out, except if the window wraps or the stride is negative.
        - If the window wraps, the range can begin below 0 or end beyond ``n``: take its elements modulo ``n``.
        - If the window is mirrored, the range is extended to the elements that mirrored ones are copies of.
        - If ``spread`` is above 1, elements lie ``spread`` positions apart, as in a transposed convolution: position i
          reads element ``(i + first) / spread``, or nothing if that is not an integer. Only elements that exist are in
          the range.
        - If there are no positions, or they read nothing, the range is empty.

        Args:
            start: the first position.
            stop: the position behind the last one.
            n: the number of elements of the dimension.

        The examples create ``Window(size, first, width)``: the number of positions, the first element of position 0, and
        the elements per position (1 by default).

        >>> Window(6, -1, 3).reads(0, 3, 6), Window(4, 2).reads(0, 2, 6), Window(6, -1, wrap=True).reads(0, 3, 6)
        (range(0, 4), range(2, 4), range(-1, 2))
        >>> Window(7, -1, spread=2).reads(0, 4, 3)  # positions 1 and 3
        range(0, 2)
        >>> Window(5, 0, 3, mirror="reflect").reads(4, 5, 5)  # elements 5 and 6 mirror elements 3 and 2
        range(2, 5)
        """
        if start >= stop:
            return range(0)
        if self.spread > 1:
            return self._find_spread_range(start, stop, n)
        if self.stride < 0:
            return range(start * self.stride + self.first, stop * self.stride + self.first, self.stride)
        low, high, step = start * self.stride + self.first, (stop - 1) * self.stride + self.first, self.step
        high += self.width
        if self.mirror:
            low, high = self._extend_by_mirror(low, high, n)
        if not self.wrap:
            # Begin at the first element that exists, in whole steps.
            low += -(-max(-low, 0) // step) * step
            high = min(high, n)
        return range(low, max(low, high), step) if low < high else range(0)

    def _find_spread_range(self, start: int, stop: int, n: int) -> range:
        """Return the elements that some positions read if ``spread`` is above 1; see :meth:`reads`."""
        first, last = (min(max(-(-(i + self.first) // self.spread), 0), n) for i in (start, stop))
        return range(first, last) if first < last else range(0)

    def _extend_by_mirror(self, low: int, high: int, n: int) -> tuple[int, int]:
        """Return ``(low, high)``, extended to the elements whose mirror images are read.

        An element outside of the dimension gets the value of an element inside, of which it is the mirror image. With
        5 elements and "reflect", elements 5 and 6 are copies of 3 and 2, so the range (4, 7) becomes (2, 7). If all
        elements are inside, the range is returned unchanged. Elements outside stay in it; the caller cuts them off.

        Args:
            low: first element of the range, below 0 if the range begins outside.
            high: the element behind the last one, above ``n`` if the range ends outside.
            n: size of the dimension.
        """
        # "reflect" mirrors at the outermost element and does not repeat it.
        edge = int(self.mirror == "reflect")
        first = min(low, 2 * n - high - edge) if high > n else low
        last = max(high, edge - low) if low < 0 else high
        return first, last

    def beyond(self, start: int, stop: int, n: int) -> tuple[int, int]:
        """Return how many elements the windows of some positions reach outside of a dimension.

        A position is an element of the result; its window consists of the elements that it reads. Both counts are 0
        for windows that wrap, and if there are no positions.

        Args:
            start: the first position.
            stop: the position behind the last one.
            n: the number of elements of the dimension.

        Returns:
            ``(elements before element 0, elements after the last one)``.

        >>> Window(6, -1, 3).beyond(0, 3, 6), Window(6, -1, 3).beyond(3, 6, 6)
        ((1, 0), (0, 1))
        """
        if start == stop or self.wrap:
            return 0, 0
        low, high = start * self.stride + self.first, (stop - 1) * self.stride + self.first + self.width
        before = min(max(0, -low), high - low)
        read = len(range(max(low, 0), min(high, n))) if self.mirror else len(self.reads(start, stop, n))
        return before, high - low - before - read

    def largest_read(self, n: int, parts: int) -> int:
        """Return how many elements the block that reads most reads, or an upper limit of that number.

        A position is an element of the result, and has one window of elements that it reads. The positions are cut
        into ``parts`` balanced blocks. The number is exact for one or two blocks, and for windows that wrap or are
        mirrored. Otherwise it is a limit, at most ``n``, that follows from the number ``p`` of positions of the
        largest block:

        * :attr:`spread` above 1: ``p / spread``, rounded up;
        * windows of one element: ``p``, whatever the stride;
        * wider windows: ``width + (p - 1) * stride``.

        Args:
            n: number of elements of the dimension that is read.
            parts: number of blocks.

        >>> Window(13, -4, mirror="reflect").largest_read(5, 7)  # positions 11 and 12 mirror elements 1 and 0
        5
        """
        if self.mirror:  # Any block may read elements for their mirror images, so look at all of them.
            blocks = [split_block(0, self.size, parts, k) for k in range(parts)]
            return max(len(self.reads(start, start + count, n)) for start, count in blocks)
        if self.wrap or parts < 3:
            return max(len(self.reads(*ends, n)) for ends in _find_end_blocks(self.size, parts))
        positions = largest_block(self.size, parts)
        if self.spread > 1:
            return min(n, -(-positions // self.spread))
        # In units of `step`: windows of one element read one element per position, whatever the stride.
        return min(n, (positions - 1) * (self.stride // self.step) + self.width)

    def positions_reading(self, start: int, stop: int) -> tuple[int, int]:
        """Return ``(first, last + 1)`` of the positions that read an element of ``start .. stop-1``.

        A position is an element of the result. For example, with windows of 3 elements from -1 on, position ``i`` reads
        elements ``i - 1`` to ``i + 1``. So element 2 is read by positions 1, 2 and 3. Cases:

        - If no position reads the elements, both numbers are equal.
        - If the window is mirrored, the range may include positions that do not read them.
        - With :attr:`spread`, positions between the first and the last may read nothing.
        - :attr:`wrap` is ignored: also call it with ``start`` and ``stop`` shifted by the size of the dimension.

        Args:
            start: the first element.
            stop: the element behind the last one.

        >>> Window(6, -1, 3).positions_reading(2, 3)
        (1, 4)
        """
        if self.stride < 0:  # count the elements from the other end
            start, stop = 1 - stop, 1 - start
            reverse = Window(self.size, -self.first, 1, -self.stride)
            return reverse.positions_reading(start, stop)
        if self.mirror:
            # A mirrored element is not further from its position than the farther end of the window.
            reach = max(-self.first, self.first + self.width - 1)
            return Window(self.size, -reach, 2 * reach + 1).positions_reading(start, stop)
        start, stop = start * self.spread, (stop - 1) * self.spread + 1
        low = -(-(start - self.first - self.width + 1) // self.stride)
        high = (stop - 1 - self.first) // self.stride + 1
        first = max(low, 0)
        return first, max(first, min(high, self.size))


def _find_end_blocks(size: int, parts: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return ``(start, stop)`` of the first and of the last of ``parts`` balanced blocks."""
    return (0, largest_block(size, parts)), (size - size // parts, size)


class Windowed(Layout):
    """A layout whose shards are the elements that windows read of some dimensions.

    As the target of a redistribution its shards are copies of these elements. As its source, such as a gradient, they
    are contributions: an element that several shards have is summed, an element that no shard has is zero.

    Args:
        base: a layout of the windows' positions; its pending reductions are those of the result.
        windows: one window, or None, for each dimension.

    >>> from spmdsim.core import Mesh
    >>> halo = Windowed(Mesh((2,), ("x",))("x"), [Window(6, -1, 3)])
    >>> halo.bounds((6,), 0), halo.bounds((6,), 1), halo.placement_text()
    (((0, 4),), ((2, 6),), 'S(0)W(0)')
    """

    __slots__ = ("base", "windows")

    base: Layout
    windows: tuple[Window | None, ...]

    def __init__(self, base: Layout, windows: Sequence[Window | None]) -> None:
        for name in ("mesh", "dims", "partial"):
            object.__setattr__(self, name, getattr(base, name))
        self._freeze(("base", "windows"), base, tuple(windows))

    def __repr__(self) -> str:
        return f"Windowed({self.base!r}, {self.windows})"

    def __str__(self) -> str:
        windows = [f"dim {d} in {window}" for d, window in enumerate(self.windows) if window]
        return f"{self.base}, {', '.join(windows)}"

    def placement_text(self) -> str:
        """Return the placements of the base and the numbers of the dimensions with windows, as one text."""
        return f"{self.base.placement_text()}W({','.join(str(d) for d, window in enumerate(self.windows) if window)})"

    def reads(self, shape: Sequence[int], rank: int) -> tuple[range, ...]:
        """Return, for each dimension of ``shape``, the range of elements that ``rank`` owns.

        - With a window: all elements that the windows at the rank's positions read (:meth:`Window.reads`). If windows
          wrap, the range may begin below 0 or end beyond the size.
        - Without a window: the rank's block.
        """
        counts = [n if window is None else window.size for n, window in zip(shape, self.windows)]
        return tuple(
            range(start, stop) if window is None else window.reads(start, stop, n)
            for n, window, (start, stop) in zip(shape, self.windows, self.base.bounds(counts, rank))
        )

    def bounds(self, shape: Sequence[int], rank: int) -> Bounds:
        """Return, for each dimension, ``(low, low + count)`` of the elements that ``rank`` owns.

        ``low`` is the smallest element, 0 if there is none; ``count`` is the number of elements, which need not be
        neighbours.
        """
        first = (min(elements.start, elements[-1]) if elements else 0 for elements in self.reads(shape, rank))
        return tuple((low, low + len(elements)) for low, elements in zip(first, self.reads(shape, rank)))

    def largest_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return, for each dimension, the largest size of a shard, or an upper limit of it.

        The limit is used for three blocks or more of windows that do not wrap, because only the sizes of blocks are
        computed then.
        """
        return tuple(
            largest_block(n, parts) if window is None else window.largest_read(n, parts)
            for n, window, parts in zip(shape, self.windows, self.cuts)
        )

    def with_partial(self, partial: Any = ()) -> Layout:
        """Return a layout with equal shards and other partial axes."""
        return Windowed(self.base.with_partial(partial), self.windows)

    @property
    def reduced(self) -> Layout:
        """The layout with equal shards and no pending reduction."""
        return Windowed(self.base.reduced, self.windows)

    def dual(self) -> Layout:
        """Return the layout for the sum of all windows' gradients.

        These are the blocks of the base, because a window need not have every element.
        """
        return self.base.dual()

    @property
    def canonical(self) -> Layout:
        """The layout with equal shards on a mesh without axes of size 1."""
        return Windowed(self.base.canonical, self.windows)
