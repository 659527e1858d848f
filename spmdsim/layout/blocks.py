"""Balanced blocks: how a dim, or any vector, is cut. Everything that cuts one, calls this.

The first ``n % p`` of ``p`` parts get one element more. Cut again and again by several numbers of parts ("nested"),
each block is cut into balanced blocks itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from spmdsim.core.layout import Layout, split_block

if TYPE_CHECKING:
    import numpy as np

FEW = 64
"""Up to so many ranks, the bounds of a layout are remembered."""


def block_sizes(size: int, parts: int) -> tuple[int, ...]:
    """The sizes of all blocks.

    >>> block_sizes(7, 3)
    (3, 2, 2)
    """
    base, extra = divmod(size, parts)
    return (base + 1,) * extra + (base,) * (parts - extra)


def largest_block(size: int, parts: int) -> int:
    """Elements of the largest block, which is the first; nested cuts into as many parts have it too.

    >>> largest_block(7, 3), largest_block(largest_block(7, 2), 2), largest_block(7, 4)
    (3, 2, 2)
    """
    return -(-size // parts)


def nested_blocks(size: int, parts: Sequence[int]) -> list[tuple[int, int]]:
    """Starts and sizes of all nested blocks; for few blocks faster than :func:`nested_block_arrays`.

    >>> nested_blocks(7, (2, 2))
    [(0, 2), (2, 2), (4, 2), (6, 1)]
    """
    blocks = [(0, size)]
    for count in parts:
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


def all_bounds(layout: Layout, shape: Sequence[int]) -> np.ndarray:
    """The bounds of all ranks at once: an int64 array ``[mesh position, dim, start|stop]``.

    Vectorised: a mesh of a million ranks takes a fraction of a second. Nobody may write into it: those of few ranks are
    remembered.
    """
    layout.check_shape(shape)
    return (_few_bounds if layout.mesh.size <= FEW else _all_bounds)(layout, tuple(shape))


def _all_bounds(layout: Layout, shape: tuple[int, ...]) -> np.ndarray:
    import numpy as np

    mesh = layout.mesh
    places = np.indices(mesh.shape, sparse=True)
    out = np.empty((*mesh.shape, len(shape), 2), dtype=np.int64)
    for dim, (size, entry) in enumerate(zip(shape, layout.dims)):
        start, length = 0, size
        for axis in entry:
            start, length = split_block(start, length, mesh.size_of[axis], places[mesh.axis_index(axis)])
        out[..., dim, 0], out[..., dim, 1] = start, start + length
    out.flags.writeable = False
    return out.reshape(mesh.size, len(shape), 2)


_few_bounds = lru_cache(maxsize=1024)(_all_bounds)
