"""Layouts whose pieces are shifted, cut or overlap: what a slice, a stencil or a convolution reads of a split dim.

A result's dim is split in balanced blocks as any other. Its operand is wanted in the elements that the positions of each
block read: a :class:`Window` says which. So a slice is a layout with a shift, and a halo one with pieces that overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spmdsim.core.layout import Bounds, Layout, largest_block
from spmdsim.errors import many


@dataclass(frozen=True)
class Window:
    """What the positions of a result's dim read of a dim: ``i`` the elements from ``i * stride + first`` on.

    Attributes:
        size: number of positions.
        first: the first element that position 0 reads; elements that are not there (before 0, beyond the last) are read by
            nobody.
        width: how many elements each position reads.
        stride: from one position's first element to the next one's; negative where a dim of the same elements is turned
            round.
        wrap: elements before 0 are the last ones, and those beyond the last the first ones.
        spread: so many positions apart elements are read, one each: position ``i`` reads ``(i + first) / spread`` where
            that is whole, and nothing elsewhere; ``width`` and ``stride`` are 1 then.
        padded: whether what is not there gets values beside what is read: room is left for them then.
        mirror: "reflect" or "symmetric", as numpy.pad has them, if elements that are not there are filled with mirrored
            ones: a piece then reads these, too, though they may lie further in than its own windows. Empty if not.
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
        """From one element that is read to the next: where positions read one element each, those between are not."""
        return self.stride if self.width == 1 else 1

    def reads(self, start: int, stop: int, n: int) -> range:
        """The elements that positions ``start .. stop-1`` read of a dim of size ``n``; unrolled where they wrap.

        >>> Window(6, -1, 3).reads(0, 3, 6), Window(4, 2).reads(0, 2, 6), Window(6, -1, wrap=True).reads(0, 3, 6)
        (range(0, 4), range(2, 4), range(-1, 2))
        >>> Window(7, -1, spread=2).reads(0, 4, 3)  # positions 1 and 3
        range(0, 2)
        >>> Window(5, 0, 3, mirror="reflect").reads(4, 5, 5)  # what is beyond 4 mirrors 3 and 2
        range(2, 5)
        """
        if start >= stop:
            return range(0)
        if self.spread > 1:
            first, last = (min(max(-(-(i + self.first) // self.spread), 0), n) for i in (start, stop))
            return range(first, last) if first < last else range(0)
        if self.stride < 0:
            return range(start * self.stride + self.first, stop * self.stride + self.first, self.stride)
        low, high, step = start * self.stride + self.first, (stop - 1) * self.stride + self.first, self.step
        high += self.width
        if self.mirror:
            low, high = self._mirrored(low, high, n)
        if not self.wrap:
            low += -(-max(-low, 0) // step) * step
            high = min(high, n)
        return range(low, max(low, high), step) if low < high else range(0)

    def _mirrored(self, low: int, high: int, n: int) -> tuple[int, int]:
        """Extend the elements ``low .. high-1`` by the mirror images of those that are not in ``0 .. n-1``."""
        edge = int(self.mirror == "reflect")  # the outermost element is the mirror, and is not repeated
        first = min(low, 2 * n - high - edge) if high > n else low
        last = max(high, edge - low) if low < 0 else high
        return first, last

    def beyond(self, start: int, stop: int, n: int) -> tuple[int, int]:
        """How many elements before the first and beyond the last of ``n`` positions ``start .. stop-1`` reach.

        >>> Window(6, -1, 3).beyond(0, 3, 6), Window(6, -1, 3).beyond(3, 6, 6)
        ((1, 0), (0, 1))
        """
        if start == stop or self.wrap:
            return 0, 0
        low, high = start * self.stride + self.first, (stop - 1) * self.stride + self.first + self.width
        before = min(max(0, -low), high - low)
        read = len(range(max(low, 0), min(high, n))) if self.mirror else len(self.reads(start, stop, n))
        return before, high - low - before - read

    def readers(self, start: int, stop: int) -> tuple[int, int]:
        """The positions, first and last plus one, that read an element of ``start .. stop-1``."""
        if self.stride < 0:  # the same of the elements counted from the other end
            start, stop = 1 - stop, 1 - start
            turned = Window(self.size, -self.first, 1, -self.stride)
            return turned.readers(start, stop)
        if (
            self.mirror
        ):  # mirrored elements are no further from a position than the farther of its window's ends
            reach = max(-self.first, self.first + self.width - 1)
            return Window(self.size, -reach, 2 * reach + 1).readers(start, stop)
        start, stop = start * self.spread, (stop - 1) * self.spread + 1
        low = -(-(start - self.first - self.width + 1) // self.stride)
        high = (stop - 1 - self.first) // self.stride + 1
        return max(low, 0), max(max(low, 0), min(high, self.size))


def _end_blocks(size: int, parts: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return where the first and the last of ``parts`` balanced blocks of ``size`` positions start and stop."""
    return (0, largest_block(size, parts)), (size - size // parts, size)


class Windowed(Layout):
    """A layout of which windows say what pieces hold of some dims.

    As the target of a redistribution its pieces are copies of what the windows read. As its source, such as a
    gradient, they are contributions: elements that several pieces have are added up, those that none has are zero.

    Args:
        base: the axes that split the windows' positions, and what is pending.
        windows: per dim its window, or None.

    >>> from spmdsim.core import Mesh
    >>> halo = Windowed(Mesh((2,), ("x",))("x"), [Window(6, -1, 3)])
    >>> halo.bounds((6,), 0), halo.bounds((6,), 1), halo.short()
    (((0, 4),), ((2, 6),), 'S(0)W(0)')
    """

    __slots__ = ("base", "windows")

    base: Layout
    windows: tuple[Window | None, ...]

    def __init__(self, base: Layout, windows: Sequence[Window | None]) -> None:
        for name in ("mesh", "dims", "partial"):
            object.__setattr__(self, name, getattr(base, name))
        self._settle(("base", "windows"), base, tuple(windows))

    def __repr__(self) -> str:
        return f"Windowed({self.base!r}, {self.windows})"

    def __str__(self) -> str:
        windows = [f"dim {d} in {window}" for d, window in enumerate(self.windows) if window]
        return f"{self.base}, {', '.join(windows)}"

    def short(self) -> str:
        """The base's, and which dims have windows."""
        return f"{self.base.short()}W({','.join(str(d) for d, window in enumerate(self.windows) if window)})"

    def reads(self, shape: Sequence[int], rank: int) -> tuple[range, ...]:
        """Per dim the elements that ``rank`` has."""
        counts = [n if window is None else window.size for n, window in zip(shape, self.windows)]
        return tuple(
            range(start, stop) if window is None else window.reads(start, stop, n)
            for n, window, (start, stop) in zip(shape, self.windows, self.base.bounds(counts, rank))
        )

    def bounds(self, shape: Sequence[int], rank: int) -> Bounds:
        """Per dim where the piece begins, and that plus its length."""
        first = (min(part.start, part[-1]) if part else 0 for part in self.reads(shape, rank))
        return tuple((low, low + len(part)) for low, part in zip(first, self.reads(shape, rank)))

    def largest_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of the largest piece, in each dim."""
        return tuple(
            largest_block(n, parts)
            if window is None
            else max(len(window.reads(*ends, n)) for ends in _end_blocks(window.size, parts))
            if window.wrap or parts < 3
            else min(n, -(-largest_block(window.size, parts) // window.spread))
            if window.spread > 1
            else min(
                n, (largest_block(window.size, parts) - 1) * (window.stride // window.step) + window.width
            )
            for n, window, parts in zip(shape, self.windows, self.cuts)
        )

    def with_partial(self, partial: Any = ()) -> Layout:
        """The same pieces with other pending axes."""
        return Windowed(self.base.with_partial(partial), self.windows)

    @property
    def reduced(self) -> Layout:
        """The same pieces with nothing pending."""
        return Windowed(self.base.reduced, self.windows)

    def dual(self) -> Layout:
        """Where gradients of all windows are together: in blocks, since no window need have every element."""
        return self.base.dual()

    @property
    def canonical(self) -> Layout:
        """The same distribution without axes of size 1."""
        return Windowed(self.base.canonical, self.windows)
