"""Store the transfers of an exchange: the boxes that a rank sends or receives.

A rank may have 65,535 transfers, so they are stored as columns.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress, pairwise, product, repeat
from typing import Any, NamedTuple

import numpy as np

from spmdsim.core import Bounds
from spmdsim.core.step import volume
from spmdsim.errors import many


class Transfer(NamedTuple):
    """Box of the global tensor that a rank receives from ``peer`` or sends to it.

    The peer may be the rank itself.
    """

    peer: int
    box: Bounds

    @property
    def count(self) -> int:  # type: ignore[override]
        """Number of elements of the box."""
        return volume(self.box)


class Transfers(Sequence[Transfer]):
    """Sequence of transfers whose boxes are cells of a grid. A transfer is built when it is read.

    Args:
        peers: the peer of each transfer.
        edges: for each dimension, the starts of the cells and the end of the last one.
        cells: the row-major cell number of each transfer; None for all cells in order.

    >>> Transfers(np.array([5, 7]), [np.array([0, 2, 4]), np.array([0, 3])])[1]
    Transfer(peer=7, box=((2, 4), (0, 3)))
    """

    __slots__ = ("_cells", "_edges", "peers")

    def __init__(
        self, peers: np.ndarray, edges: Sequence[np.ndarray], cells: np.ndarray | None = None
    ) -> None:
        self.peers = peers
        self._edges = edges
        self._cells = cells

    def __len__(self) -> int:
        return len(self.peers)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple([self[number] for number in range(*index.indices(len(self)))])
        number = range(len(self))[index]
        cell = number if self._cells is None else self._cells[number]
        places = np.unravel_index(cell, [len(edges) - 1 for edges in self._edges])
        box = tuple([(int(edges[k]), int(edges[k + 1])) for edges, k in zip(self._edges, places)])
        return Transfer(int(self.peers[number]), box)

    def __iter__(self) -> Iterator[Transfer]:
        boxes = product(*[pairwise(edges.tolist()) for edges in self._edges])
        # Build all transfers at once: one by one, they would start the garbage collector a hundred times.
        collecting = gc.isenabled()
        gc.disable()
        try:  # tuple.__new__ skips the named constructor's overhead
            return iter(
                [*map(tuple.__new__, repeat(Transfer), zip(self.peers.tolist(), self._select_boxes(boxes)))]
            )
        finally:
            if collecting:
                gc.enable()

    def _select_boxes(self, boxes: Iterable[Bounds]) -> Iterable[Bounds]:
        """Return the box of each transfer, in order, from the boxes of all cells in row-major order.

        Without a list of cell numbers, these are all boxes. Repeated or unsorted numbers are allowed.

        Args:
            boxes: the boxes of all cells; read once.
        """
        cells, count = self._cells, math.prod([len(edges) - 1 for edges in self._edges])
        if cells is None:
            return boxes
        is_ascending = bool(np.all(cells[1:] > cells[:-1]))
        if not is_ascending:
            return map(list(boxes).__getitem__, cells.tolist())
        if len(cells) == count:
            return boxes
        is_chosen = np.zeros(count, bool)
        is_chosen[cells] = True
        return compress(boxes, is_chosen.tobytes())

    def __repr__(self) -> str:
        return f"Transfers with {many(len(self), 'peer')}"
