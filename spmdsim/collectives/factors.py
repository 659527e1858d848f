"""Powers below a number of ranks, and its factors as the extents of a torus."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache


def powers_below(size: int, radix: int) -> Iterator[int]:
    """Yield the powers 1, ``radix``, ``radix ** 2``, ... below ``size``.

    >>> list(powers_below(10, 3))
    [1, 3, 9]
    """
    power = 1
    while power < size:
        yield power
        power *= radix


@lru_cache(maxsize=1 << 10)
def torus_shape(size: int, dimensions: int) -> tuple[int, ...]:
    """Return the extents of a torus of ``size`` ranks, as equal as possible.

    Each extent is the smallest divisor of the remaining ranks that is at least their root. A prime number of ranks gives a
    ring.

    >>> torus_shape(64, 2), torus_shape(64, 3), torus_shape(12, 2), torus_shape(7, 2)
    ((8, 8), (4, 4, 4), (4, 3), (7, 1))
    """
    if dimensions == 1:
        return (size,)
    extent = next(d for d in range(1, size + 1) if size % d == 0 and d**dimensions >= size)
    return (extent, *torus_shape(size // extent, dimensions - 1))
