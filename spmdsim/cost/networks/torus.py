"""Rings and tori: dimension-ordered routes, the shorter way round in each dim."""

from __future__ import annotations

from math import prod

import numpy as np

from spmdsim.cost.networks.topology import Floats, Ints, Routes, Topology, TopologyPlace


class Torus(Topology):
    """A torus of any number of dims; one dim is a ring. Ranks are numbered row-major.

    Every rank has one link in each direction of each dim. A message corrects dim 0 first, then dim 1, and so on;
    at equal distance it goes in the positive direction.

    Attributes:
        dims: ranks per dim.
    """

    def __init__(
        self, dims: tuple[int, ...], bandwidth: float, alpha: float = 0.0, hop_seconds: float = 0.0
    ) -> None:
        self.dims = dims
        self.ranks = prod(dims)
        shape = "x".join(map(str, dims))
        self.name = f"ring {shape}" if len(dims) == 1 else f"torus {shape}"
        self.alpha, self.hop_seconds = alpha, hop_seconds
        self.strides = tuple(prod(dims[i + 1 :]) for i in range(len(dims)))
        self.capacity = np.full(2 * len(dims) * self.ranks, float(bandwidth))

    def _legs(self, sources: Ints, targets: Ints, dim: int) -> tuple[Ints, Ints, Ints, Ints]:
        """Where each message is before it moves in a dim, its coordinate there, its hops and its direction."""
        at = np.zeros_like(sources)
        for d, (size, stride) in enumerate(zip(self.dims, self.strides)):
            at += (((targets if d < dim else sources) // stride) % size) * stride
        size, stride = self.dims[dim], self.strides[dim]
        start = (sources // stride) % size
        ahead = ((targets // stride) % size - start) % size
        backwards = (ahead > size // 2).astype(np.int64) if size > 2 else np.zeros_like(ahead)
        hops = np.where(backwards, size - ahead, ahead)
        return at, start, hops, backwards

    def routes(self, sources: Ints, targets: Ints) -> Routes:
        """All links of all messages; the lists are as long as the sum of the distances."""
        messages, links = [], []
        for dim, (size, stride) in enumerate(zip(self.dims, self.strides)):
            at, start, hops, backwards = self._legs(sources, targets, dim)
            which: Ints = np.repeat(np.arange(len(sources)), hops)
            ends = np.cumsum(hops)
            step: Ints = np.arange(len(which)) - np.repeat(ends - hops, hops)
            sign: Ints = 1 - 2 * backwards[which]
            place = (start[which] + sign * step) % size
            rank = at[which] + (place - start[which]) * stride
            links.append(self._link(dim, backwards[which], rank))
            messages.append(which)
        return Routes(np.concatenate(messages), np.concatenate(links), len(sources))

    def _link(self, dim: int, backwards: Ints, rank: Ints) -> Ints:
        links: Ints = (2 * dim + backwards) * self.ranks + rank
        return links

    def hops(self, sources: Ints, targets: Ints) -> Ints:
        """Distance of each message, without listing its links."""
        return sum(  # type: ignore[return-value]
            self._legs(sources, targets, dim)[2] for dim in range(len(self.dims))
        )

    def loads(self, sources: Ints, targets: Ints, weights: Floats) -> Floats:
        """Load of each link by running sums along the rings, in time proportional to the ranks."""
        total = np.zeros(len(self.capacity))
        for dim, (size, stride) in enumerate(zip(self.dims, self.strides)):
            at, start, hops, backwards = self._legs(sources, targets, dim)
            line = at - start * stride  # the rank with coordinate 0 on the same ring
            for direction in (0, 1):
                pick = np.flatnonzero((backwards == direction) & (hops > 0))
                if not len(pick):
                    continue
                # Seen from its end, a way back is a way ahead that ends where the message starts.
                first = start[pick] if direction == 0 else (start[pick] - hops[pick] + 1) % size
                ring = self._ring_sums(line[pick], first, hops[pick], weights[pick], size, stride)
                begin = (2 * dim + direction) * self.ranks
                total[begin : begin + self.ranks] += ring
        return total

    def _ring_sums(
        self, line: Ints, first: Ints, hops: Ints, weights: Floats, size: int, stride: int
    ) -> Floats:
        """Weights summed over ``hops`` places from ``first``, wrapping around each ring."""
        wide = 2 * size
        # Rings in a row: number of the ring = line with the dim's own stride squeezed out.
        ring = line // (stride * size) * stride + line % stride
        marks = np.zeros((self.ranks // size) * (wide + 1))
        marks += np.bincount(ring * (wide + 1) + first, weights, minlength=len(marks))
        marks -= np.bincount(ring * (wide + 1) + first + hops, weights, minlength=len(marks))
        sums = np.cumsum(marks.reshape(-1, wide + 1), axis=1)[:, :wide]
        folded = sums[:, :size] + sums[:, size:]
        return folded.reshape(-1, stride, size).transpose(0, 2, 1).reshape(-1)

    def link_name(self, link: int) -> str:
        """Words for one link: the rank it leaves, its direction, its dim."""
        which, rank = divmod(int(link), self.ranks)
        return f"{rank} {'-' if which % 2 else '+'} dim {which // 2}"

    def ends(self, link: int) -> tuple[TopologyPlace, TopologyPlace]:
        """A rank and its neighbour."""
        which, rank = divmod(int(link), self.ranks)
        size, stride = self.dims[which // 2], self.strides[which // 2]
        at = rank // stride % size
        beside = (at + (-1 if which % 2 else 1)) % size
        return TopologyPlace(0, rank), TopologyPlace(0, rank + (beside - at) * stride)
