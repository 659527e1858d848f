"""Compute which elements a rank owns, element by element, to verify :meth:`Layout.bounds`.

:meth:`Layout.bounds` goes from a rank's coordinates to a start and a stop. This module computes for every element the
coordinates of its owner, from the definition alone. Along an axis of ``p`` ranks, ``n`` elements form blocks of ``n
// p`` or ``n // p + 1`` elements, the longer ones first. So element ``e`` belongs to block
``max(e // (n // p + 1), (e - n % p) // (n // p))``. The two share no code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from spmdsim.core.layout import Layout


class Pieces:
    """The elements of a tensor of one shape, and the coordinates of the ranks that own them.

    >>> from spmdsim.core import Mesh
    >>> Pieces(Mesh((3,), ("x",))("x", None), (7, 2)).bounds(rank=1)
    ((3, 5), (0, 2))
    """

    def __init__(self, layout: Layout, shape: Sequence[int]) -> None:
        self.mesh, self.shape = layout.mesh, tuple(shape)
        sizes = dict(zip(self.mesh.axes, self.mesh.shape))
        self._dims = [
            (entry, _owned_ranges(owner_coordinates(size, [(axis, sizes[axis]) for axis in entry]), size))
            for size, entry in zip(self.shape, layout.dims)
        ]

    def bounds(self, rank: int) -> tuple[tuple[int, int], ...]:
        """Return ``(start, stop)`` of the elements that ``rank`` owns, one pair per dimension.

        A pair is ``(0, 0)`` if the rank owns nothing of the dimension. ``rank`` must be in the mesh.
        """
        ranks = range(self.mesh.size) if self.mesh.ranks is None else self.mesh.ranks
        position = np.unravel_index(ranks.index(rank), self.mesh.shape)
        coordinates = dict(zip(self.mesh.axes, map(int, position)))
        return tuple(
            ranges.get(tuple(coordinates[axis] for axis in entry), (0, 0)) for entry, ranges in self._dims
        )


def _owned_ranges(owners: dict[str, np.ndarray], size: int) -> dict[tuple[int, ...], tuple[int, int]]:
    """Return ``(start, stop)`` of a dimension's elements by owner coordinates.

    Coordinates that own no element are missing. Without splitting axes the result is ``{(): (0, size)}``. For 3
    elements on an axis of 4 ranks it is ``{(0,): (0, 1), (1,): (1, 2), (2,): (2, 3)}``.

    Args:
        owners: the result of :func:`owner_coordinates` for the dimension: one array of coordinates per axis, major
            first.
        size: number of the dimension's elements.
    """
    if not owners:
        return {(): (0, size)}
    positions, starts, counts = np.unique(
        np.stack(list(owners.values())), axis=1, return_index=True, return_counts=True
    )
    return {
        tuple(position): (start, start + count)
        for position, start, count in zip(positions.T.tolist(), starts.tolist(), counts.tolist())
    }


def owner_coordinates(size: int, axes: Sequence[tuple[str, int]]) -> dict[str, np.ndarray]:
    """Return, for each axis that splits a dimension, the coordinate of the owner of each element.

    The blocks are balanced: the first ones are longer by one element if the size is no multiple of their number. In the
    example, four ranks own the elements 0-1, 2-3, 4-5 and 6. Element 2 belongs to the rank with a=0 and b=1.

    Args:
        size: number of elements.
        axes: ``(name, size)`` of the axes that split the dimension, major first.

    Returns:
        An array with ``size`` coordinates for each axis, by its name.

    >>> {axis: at.tolist() for axis, at in owner_coordinates(7, [("a", 2), ("b", 2)]).items()}
    {'a': [0, 0, 0, 0, 1, 1, 1], 'b': [0, 0, 1, 1, 0, 0, 1]}
    """
    offset: np.ndarray = np.arange(size)
    length: np.ndarray = np.full(size, size)
    coordinates = {}
    for axis, parts in axes:
        # The first `longer_count` blocks have one element more than the others.
        short_length, longer_count = length // parts, length % parts
        # The first term is the block among the longer ones, the second one the block among the others.
        block = np.maximum(
            offset // (short_length + 1), (offset - longer_count) // np.maximum(short_length, 1)
        )
        offset = offset - (block * short_length + np.minimum(block, longer_count))
        length = short_length + (block < longer_count)
        coordinates[axis] = block
    return coordinates


def describe_misplaced(
    layout: Layout, shape: Sequence[int], ranks: Sequence[int], pieces: Pieces | None = None
) -> str | None:
    """Return a sentence about the first shard with wrong bounds, or None if all are right.

    The bounds of each rank are compared with the elements that it owns by definition, first by rank, then by dimension.
    Empty ranges are equal, wherever they start.

    Args:
        layout: the layout whose ``bounds`` are verified.
        shape: shape of the tensor.
        ranks: the ranks to verify, in this order; ranks outside of the mesh are skipped.
        pieces: the owners by definition, for this layout and shape; None: they are computed.

    >>> from spmdsim.core import Mesh
    >>> describe_misplaced(Mesh((3,), ("x",))("x"), (7,), range(4)) is None
    True
    """
    pieces = pieces or Pieces(layout, shape)
    for rank in ranks:
        if rank not in layout.mesh:
            continue
        for dim, (actual, expected) in enumerate(zip(layout.bounds(shape, rank), pieces.bounds(rank))):
            if actual != expected and (actual[0] < actual[1] or expected[0] < expected[1]):
                return (
                    f"rank {rank} owns {actual[0]}:{actual[1]} of dim {dim} of {tuple(shape)}, but by the definition "
                    f"of {layout} it is {expected[0]}:{expected[1]}"
                )
    return None
