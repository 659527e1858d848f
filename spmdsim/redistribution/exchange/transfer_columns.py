"""The transfers of one rank as columns: a rank may have 65,535 peers, and few look at each of them."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress, pairwise, product, repeat
from typing import Any, NamedTuple

import numpy as np

from spmdsim.core import Bounds
from spmdsim.core.step import volume


class Transfer(NamedTuple):
    """A box of the global tensor that goes between this rank and ``peer`` (which may be the rank itself)."""

    peer: int
    box: Bounds

    @property
    def count(self) -> int:  # type: ignore[override]
        """Number of elements."""
        return volume(self.box)


class Transfers(Sequence[Transfer]):
    """Transfers whose boxes are cells of a grid; each is made when it is asked for.

    Args:
        peers: the other rank of each transfer.
        edges: per dim where the cells begin, and where the last one stops.
        cells: row-major number of each transfer's cell; all cells in order if left out.

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
        # All at once: making them one by one would start the garbage collector a hundred times.
        collecting = gc.isenabled()
        gc.disable()
        try:
            return iter(self._made())
        finally:
            if collecting:
                gc.enable()

    def _made(self) -> list[Transfer]:
        boxes = product(*[pairwise(edges.tolist()) for edges in self._edges])
        # tuple.__new__ skips the named constructor's overhead.
        return list(map(tuple.__new__, repeat(Transfer), zip(self.peers.tolist(), self._chosen(boxes))))

    def _chosen(self, boxes: Iterable[Bounds]) -> Iterable[Bounds]:
        """The transfers' boxes, of those of all cells."""
        cells = self._cells
        if cells is None:
            return boxes
        if np.any(cells[1:] <= cells[:-1]):
            return map(list(boxes).__getitem__, cells.tolist())
        chosen = np.zeros(math.prod([len(edges) - 1 for edges in self._edges]), bool)
        chosen[cells] = True
        return compress(boxes, chosen.tolist())

    def __repr__(self) -> str:
        return f"Transfers with {len(self)} peers"
