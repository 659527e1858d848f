"""How a vector is cut into chunks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from spmdsim.errors import ScheduleError
from spmdsim.layout.blocks import block_sizes, largest_block

BALANCED = "balanced"
CEILING = "ceiling"


def cut(count: int, pieces: int, rounding: str = BALANCED) -> tuple[int, ...]:
    """Cut ``count`` elements into ``pieces``.

    ``"balanced"``: the first ``count % pieces`` pieces get one more. ``"ceiling"``: pieces of
    ``ceil(count / pieces)`` until nothing is left, so the last ones may be short or empty (MPICH's ring
    all_reduce and its scatter for broadcast cut like this).

    >>> cut(10, 4), cut(10, 4, "ceiling"), cut(2, 4)
    ((3, 3, 2, 2), (3, 3, 3, 1), (1, 1, 0, 0))
    """
    if rounding == BALANCED:
        return block_sizes(count, pieces)
    if rounding == CEILING:
        piece = largest_block(count, pieces)
        return tuple(max(0, min(piece, count - i * piece)) for i in range(pieces))
    raise ScheduleError(f"unknown rounding {rounding!r}; known are 'balanced' and 'ceiling'")


@lru_cache(maxsize=256)
def chunk_sizes(count: int, levels: Sequence[int], rounding: str = BALANCED) -> tuple[int, ...]:
    """Cut ``count`` elements level by level: first into ``levels[0]`` pieces, each of these into ``levels[1]``, ...

    >>> chunk_sizes(1000, (2, 3))
    (167, 167, 166, 167, 167, 166)
    """
    pieces: tuple[int, ...] = (count,)
    for level in levels:
        pieces = tuple(part for piece in pieces for part in cut(piece, level, rounding))
    return pieces
