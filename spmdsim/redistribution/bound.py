"""The least that a rank has to receive, whatever the algorithm.

* Values only move: a rank receives every element of its target box that it does not hold, ``|target - source|``.
  This is exact, and the direct exchange reaches it.
* Values are reduced: each element has ``n`` contributions, one per rank of the pending axes, and ends up on ``k``
  ranks. Every contribution but one must travel to be combined, and the sum must then reach the other ``k - 1``
  holders: ``(n - 1) + (k - 1)`` elements received, or one more where no holder-to-be has a contribution of its own.
  Shared evenly over the holders this is ``(n-1)/n`` of the vector for P -> S and ``2 (n-1)/n`` of it for P -> R.

The count per element bounds the sum over ranks, so the largest share bounds the busiest rank. Axes along which the
source and the target only hold copies are left out of ``k``: the groups along them are the same problem side by
side. Where the reduced values go to other ranks than those that hold the contributions, the adding can be done by
either, and the bound is what a target rank must receive in any case: each element once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from spmdsim.layout import Layout
from spmdsim.redistribution.exchange.grid import piece_numbers, ranks_of
from spmdsim.redistribution.step import overlap


def kept_axes(src: Layout, dst: Layout) -> tuple[str, ...]:
    """The axes whose values stay pending with the same reduction, in mesh order."""
    if not src.partial or not dst.partial or src.mesh != dst.mesh:
        return ()
    return tuple(axis for axis, op in src.partial if (axis, op) in dst.partial)


def reduced_axes(src: Layout, dst: Layout) -> tuple[str, ...]:
    """The axes whose pending values have to be reduced, in mesh order."""
    kept = kept_axes(src, dst)
    return tuple(axis for axis in src.partial_axes if axis not in kept)


def contributions(src: Layout, dst: Layout) -> int:
    """How many contributions are combined into one element (1: values only move)."""
    return src.mesh.axis_size(*reduced_axes(src, dst)) if src.partial else 1


def lower_bound_elements(src: Layout, dst: Layout, shape: Sequence[int], rank: int) -> int:
    """Elements that ``rank`` must receive at least to get from ``src`` to ``dst``.

    Args:
        src: the layout before, on any mesh.
        dst: the layout after.
        shape: global shape.
        rank: the rank; one outside the target's mesh receives nothing.

    >>> from spmdsim.layout import Mesh
    >>> mesh = Mesh((4,), ("x",))
    >>> lower_bound_elements(mesh("x", None), mesh(None, "x"), (8, 8), 0)
    12
    >>> lower_bound_elements(mesh(None, None, partial="x"), mesh(None, None), (8, 8), 0)
    96
    """
    if rank not in dst.mesh:
        return 0
    if contributions(src, dst) > 1:
        return int(lower_bounds(src, dst, tuple(shape))[dst.mesh.position(rank)])
    target = dst.bounds(shape, rank)
    own = overlap(src.bounds(shape, rank), target) if rank in src.mesh else None
    held = math.prod(stop - start for start, stop in own) if own else 0
    return math.prod(stop - start for start, stop in target) - held


@lru_cache(maxsize=1024)
def lower_bounds(src: Layout, dst: Layout, shape: tuple[int, ...]) -> np.ndarray:
    """:func:`lower_bound_elements` for every position of the target's mesh, as one int64 array."""
    here = ranks_of(src.mesh).positions(ranks_of(dst.mesh).rank)
    want, have = dst.all_bounds(shape), src.all_bounds(shape)[here]
    own = np.minimum(want[..., 1], have[..., 1]) - np.maximum(want[..., 0], have[..., 0])
    held = np.where(here < 0, 0, np.maximum(own, 0).prod(axis=1))
    wanted = (want[..., 1] - want[..., 0]).prod(axis=1)
    terms = contributions(src, dst)
    if terms == 1:
        return wanted - held
    if {*src.mesh.rank_list} != {*dst.mesh.rank_list}:
        return wanted
    kept = kept_axes(src, dst)
    apart = _copies_only(src, dst)
    piece = piece_numbers(dst.mesh, (*dst.split_axes, *kept, *apart))
    holders = dst.mesh.size // dst.mesh.axis_size(*dst.split_axes, *kept, *apart)
    # Which elements of a target piece are in the source piece of one of its holders: distinct source pieces of
    # one target piece share no element, so their overlaps add up.
    pairs = piece * src.mesh.size + piece_numbers(src.mesh, src.split_axes)[here]
    _, first = np.unique(pairs, return_index=True)
    among = np.bincount(piece[first], weights=held[first], minlength=dst.mesh.size).astype(np.int64)
    return -(-(wanted * (terms + holders - 1) - among[piece]) // holders)


def _copies_only(src: Layout, dst: Layout) -> tuple[str, ...]:
    """The axes along which both layouts, on one mesh, hold copies."""
    if src.mesh != dst.mesh:
        return ()
    return tuple(axis for axis in src.replicated_axes if axis in dst.replicated_axes)
