"""Which elements a rank holds, derived from the elements: what pieces cut by :meth:`Layout.bounds` are judged by.

:meth:`Layout.bounds` goes from a rank's coordinates to a start and a stop. Here every element says for itself at
which coordinate of each axis it lives, by the definition alone: along an axis of ``p`` ranks, ``n`` elements go to
blocks of ``n // p`` or one more, the longer ones first, so element ``e`` goes to block
``max(e // (n // p + 1), (e - n % p) // (n // p))``. The two share no code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from spmdsim.core.layout import Layout


class Pieces:
    """The elements of a tensor of one shape, asked where they live.

    >>> from spmdsim.core import Mesh
    >>> Pieces(Mesh((3,), ("x",))("x", None), (7, 2)).bounds(rank=1)
    ((3, 5), (0, 2))
    """

    def __init__(self, layout: Layout, shape: Sequence[int]) -> None:
        self.mesh, self.shape = layout.mesh, tuple(shape)
        sizes = dict(zip(self.mesh.axes, self.mesh.shape))
        self._dims = [
            (entry, _ranges(homes(size, [(axis, sizes[axis]) for axis in entry]), size))
            for size, entry in zip(self.shape, layout.dims)
        ]

    def bounds(self, rank: int) -> tuple[tuple[int, int], ...]:
        """``(start, stop)`` per dim of the elements that live on ``rank``; ``(0, 0)`` where there are none."""
        ranks = range(self.mesh.size) if self.mesh.ranks is None else self.mesh.ranks
        place = np.unravel_index(ranks.index(rank), self.mesh.shape)
        coordinates = dict(zip(self.mesh.axes, map(int, place)))
        return tuple(
            ranges.get(tuple(coordinates[axis] for axis in entry), (0, 0)) for entry, ranges in self._dims
        )


def _ranges(home: dict[str, np.ndarray], size: int) -> dict[tuple[int, ...], tuple[int, int]]:
    """Per place, the first and the last of the elements of a dim that live there."""
    if not home:
        return {(): (0, size)}
    places, first, count = np.unique(
        np.stack(list(home.values())), axis=1, return_index=True, return_counts=True
    )
    return {
        tuple(place): (start, start + many)
        for place, start, many in zip(places.T.tolist(), first.tolist(), count.tolist())
    }


def homes(size: int, axes: Sequence[tuple[str, int]]) -> dict[str, np.ndarray]:
    """Per axis, major first, the coordinate at which each of ``size`` elements of a dim lives.

    >>> {axis: at.tolist() for axis, at in homes(7, [("a", 2), ("b", 2)]).items()}
    {'a': [0, 0, 0, 0, 1, 1, 1], 'b': [0, 0, 1, 1, 0, 0, 1]}
    """
    offset: np.ndarray = np.arange(size)
    length: np.ndarray = np.full(size, size)
    coordinates = {}
    for axis, parts in axes:
        each, longer = length // parts, length % parts
        at = np.maximum(offset // (each + 1), (offset - longer) // np.maximum(each, 1))
        offset = offset - (at * each + np.minimum(at, longer))
        length = each + (at < longer)
        coordinates[axis] = at
    return coordinates


def misplaced(
    layout: Layout, shape: Sequence[int], ranks: Sequence[int], pieces: Pieces | None = None
) -> str | None:
    """What is wrong with the pieces of some ranks; None if they hold exactly what the layout's definition says.

    >>> from spmdsim.core import Mesh
    >>> misplaced(Mesh((3,), ("x",))("x"), (7,), range(4)) is None
    True
    """
    pieces = pieces or Pieces(layout, shape)
    for rank in ranks:
        if rank not in layout.mesh:
            continue
        held, wanted = layout.bounds(shape, rank), pieces.bounds(rank)
        for dim, (is_at, belongs) in enumerate(zip(held, wanted)):
            if is_at != belongs and (is_at[0] < is_at[1] or belongs[0] < belongs[1]):
                return (
                    f"rank {rank} holds {is_at[0]}:{is_at[1]} of dim {dim} of {tuple(shape)}, but by the definition "
                    f"of {layout} it is {belongs[0]}:{belongs[1]}"
                )
    return None
