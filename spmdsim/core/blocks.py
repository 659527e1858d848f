"""Balanced blocks: how a dim, or any vector, is cut. Everything that cuts one, calls this.

The first ``n % p`` of ``p`` parts get one element more. Cut again and again by several numbers of parts ("nested"),
each block is cut into balanced blocks itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


def split_block(start: Any, size: Any, parts: int, index: Any) -> tuple[Any, Any]:
    """Start and size of block ``index`` when ``[start, start+size)`` is cut into balanced ``parts``.

    Numbers, or arrays of them that broadcast.

    >>> [split_block(0, 7, 3, i) for i in range(3)]
    [(0, 3), (3, 2), (5, 2)]
    """
    base, extra = size // parts, size % parts
    longer = index < extra
    return start + index * base + extra + (index - extra) * longer, base + longer


def largest_block(size: int, parts: int) -> int:
    """Elements of the largest block, which is the first; nested cuts into as many parts have it too.

    >>> largest_block(7, 3), largest_block(largest_block(7, 2), 2), largest_block(7, 4)
    (3, 2, 2)
    """
    return -(-size // parts)


def block_sizes(size: int, parts: int) -> tuple[int, ...]:
    """The sizes of all blocks.

    >>> block_sizes(7, 3)
    (3, 2, 2)
    """
    base, extra = divmod(size, parts)
    return (base + 1,) * extra + (base,) * (parts - extra)


def nested_blocks(size: int, parts: Sequence[int]) -> list[tuple[int, int]]:
    """Starts and sizes of all nested blocks; for few blocks faster than :func:`nested_block_arrays`.

    >>> nested_blocks(7, (2, 2))
    [(0, 2), (2, 2), (4, 2), (6, 1)]
    """
    blocks = [(0, size)]
    for count in parts:
        if count > 1:
            blocks = [split_block(start, length, count, i) for start, length in blocks for i in range(count)]
    return blocks


def nested_block_arrays(size: int, parts: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """:func:`nested_blocks` as two int64 arrays."""
    import numpy as np

    start, length = np.zeros(1, np.int64), np.full(1, size, np.int64)
    for count in parts:
        start, length = split_block(start[:, None], length[:, None], count, np.arange(count))
        start, length = start.ravel(), length.ravel()
    return start, length
