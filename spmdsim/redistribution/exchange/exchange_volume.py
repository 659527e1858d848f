"""What an exchange moves, for all ranks at once: elements received and sent, and messages.

Counted from the cuts, without listing a single transfer, so that pricing a plan costs a fraction of a
millisecond on small meshes and a few milliseconds on 65,536 ranks.
"""

from __future__ import annotations

from functools import cached_property, lru_cache

import numpy as np

from spmdsim.core import Layout
from spmdsim.redistribution.exchange.even_pieces import EvenVolume, even_volume
from spmdsim.redistribution.exchange.few_ranks import FewVolume
from spmdsim.redistribution.exchange.grid import Ends, grids
from spmdsim.redistribution.exchange.shares import FEW_RANKS


class ExchangeVolume:
    """Elements and messages of the direct exchange from ``src`` to ``dst``; counted when asked for."""

    def __init__(self, src: Layout, dst: Layout, shape: tuple[int, ...]) -> None:
        self._have, self._want, _ = grids(src, dst, shape)
        one_mesh = src.mesh == dst.mesh
        self._held = None if one_mesh else self._have.ranks.positions(self._want.ranks.rank)

    @cached_property
    def volume(self) -> np.ndarray:
        """Per position of the target mesh, the elements of its piece."""
        out = np.ones(self._want.mesh.size, np.int64)
        for cut, piece in zip(self._want.cuts, self._want.pieces):
            out *= (cut.stop - cut.start)[piece]
        return out

    @cached_property
    def own(self) -> np.ndarray:
        """Per position of the target mesh, the elements that the rank holds already."""
        have, want, held = self._have, self._want, self._held
        out = np.ones(want.mesh.size, np.int64)
        for cut, piece, other, position in zip(have.cuts, have.pieces, want.cuts, want.pieces):
            part = piece if held is None else piece[held]
            start = np.maximum(cut.start[part], other.start[position])
            out *= np.maximum(np.minimum(cut.stop[part], other.stop[position]) - start, 0)
        if held is not None:
            out[held < 0] = 0
        return out

    @cached_property
    def received(self) -> np.ndarray:
        """Per position of the target mesh, the elements that come from other ranks."""
        array: np.ndarray = self.volume - self.own
        return array

    @cached_property
    def messages(self) -> np.ndarray:
        """Per position of the target mesh, from how many other ranks, where one holder of a piece sends its box."""
        pieces = np.ones(self._want.mesh.size, np.int64)
        for mine, theirs, piece in zip(self._want.cuts, self._have.cuts, self._want.pieces):
            first, last = theirs.overlaps(mine.start, np.maximum(mine.stop, mine.start + 1))
            pieces *= (last - first)[piece]
        return np.where(self.volume > 0, pieces - (self.own > 0), 0)

    @cached_property
    def most_received(self) -> int:
        """The most elements one rank receives from others."""
        return int(self.received.max(initial=0))

    @cached_property
    def most_messages(self) -> int:
        """The most messages one rank receives."""
        return int(self.messages.max(initial=0))

    @cached_property
    def most_sent(self) -> float:
        """The most elements one rank sends, those who hold a piece sending equally much.

        A piece's demand is what all its receivers need, less what its holders hold themselves.
        """
        have, held = self._have, self._held
        shape = [cut.count for cut in have.cuts]
        if not all(shape):
            return 0.0
        sizes = np.ones(1, np.int64)
        for cut in have.cuts:
            sizes = (sizes[:, None] * np.diff(cut.edge_array)).ravel()
        keep = self.own > 0
        number = np.zeros(np.count_nonzero(keep), np.int64)
        for count, cell in zip(shape, have.cells):
            number = number * count + (cell if held is None else cell[held])[keep]
        kept = np.bincount(number, weights=self.own[keep], minlength=len(sizes))
        demand = sizes * self._want.copies - kept.astype(np.int64)
        return float(demand.max() / have.copies)


@lru_cache(maxsize=2048)
def exchange_volume(src: Layout, dst: Layout, shape: tuple[int, ...]) -> ExchangeVolume:
    """What the direct exchange from ``src`` to ``dst`` moves, cached by value."""
    return ExchangeVolume(src, dst, shape)


@lru_cache(maxsize=4096)
def busiest(ends: Ends) -> ExchangeVolume | FewVolume | EvenVolume:
    """The busiest ranks of a direct exchange as it is priced, cached by value; counted in lists for few ranks.

    Those who hold a piece are taken to send equally much, to the element and whatever the order of the boxes: so a
    price depends on sizes as shares of the tensor's. What is sent (:mod:`.shares`) is that up to rounding.
    """
    have, src, want, dst, shape = ends
    even = even_volume(ends)
    if even is not None:
        return even
    if have.size <= FEW_RANKS and want.size <= FEW_RANKS:
        return FewVolume(ends)
    return exchange_volume(Layout(have, src), Layout(want, dst), shape)
