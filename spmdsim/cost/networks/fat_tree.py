"""Fat trees with oversubscription, of any number of levels."""

from __future__ import annotations

from math import prod

import numpy as np

from spmdsim.cost.networks.topology import Ints, Routes, Topology, TopologyPlace
from spmdsim.errors import InputError


class FatTree(Topology):
    """An extended generalised fat tree: level i switches have ``down[i]`` children, and each child has ``up[i]`` parents.

    A message climbs to the lowest common ancestor and comes down. Which of several parents it takes depends on its
    target only (destination modulo ports), as in most static routings.

    Attributes:
        down: children per switch, from the leaves up; their product is the number of ranks.
        up: parents per child, from the leaves up. Oversubscription at level i is ``down[i-1] * .. / up[i]``.

    >>> FatTree((4, 2), (1, 2), bandwidth=1e9).name
    'fat tree 4x2, uplinks 1x2'
    """

    def __init__(
        self,
        down: tuple[int, ...],
        up: tuple[int, ...],
        bandwidth: float,
        alpha: float = 0.0,
        hop_seconds: float = 0.0,
    ) -> None:
        if len(down) != len(up) or min(down + up) < 1:
            raise InputError(
                f"a fat tree needs as many up as down counts, all >= 1; got down {down}, up {up}"
            )
        self.down, self.up = down, up
        self.ranks = prod(down)
        self.alpha, self.hop_seconds = alpha, hop_seconds
        self.name = f"fat tree {'x'.join(map(str, down))}, uplinks {'x'.join(map(str, up))}"
        self.below = [prod(down[:i]) for i in range(len(down) + 1)]
        self.copies = [prod(up[:i]) for i in range(len(up) + 1)]
        sizes = [self.ranks // self.below[i] * self.copies[i] * up[i] for i in range(len(down))]
        #: First link of each level; up links first, then the down links in the same order.
        self.first = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
        self.capacity = np.full(2 * self.first[-1], float(bandwidth))

    @classmethod
    def two_level(
        cls,
        ranks: int,
        leaf: int,
        oversubscription: float,
        bandwidth: float,
        alpha: float = 0.0,
        hop_seconds: float = 0.0,
    ) -> FatTree:
        """Leaf switches of ``leaf`` ranks, each with ``leaf / oversubscription`` links to as many spines."""
        if ranks % leaf:
            raise InputError(f"{ranks} ranks do not fill leaf switches of {leaf}; choose a divisor")
        if not oversubscription >= 1:
            raise InputError(
                f"oversubscription is {oversubscription}; 1 means none, larger means fewer uplinks"
            )
        uplinks = max(1, round(leaf / oversubscription))
        return cls((leaf, ranks // leaf), (1, uplinks), bandwidth, alpha, hop_seconds)

    def routes(self, sources: Ints, targets: Ints) -> Routes:
        """Up links of the sender's side, down links of the receiver's side, level by level."""
        messages, links = [], []
        copy = np.zeros_like(sources)
        for level in range(len(self.down)):
            # A message uses the links above this level while both ends are in different subtrees.
            going = sources // self.below[level] != targets // self.below[level]
            which = np.flatnonzero(going)
            port = targets // self.copies[level] % self.up[level]
            for side, ends in enumerate((sources, targets)):
                subtree = ends[which] // self.below[level]
                at = (subtree * self.copies[level] + copy[which]) * self.up[level] + port[which]
                links.append(side * self.first[-1] + self.first[level] + at)
                messages.append(which)
            copy = copy * self.up[level] + port
        return Routes(np.concatenate(messages), np.concatenate(links), len(sources))

    def _link(self, link: int) -> tuple[int, int, int, int, int]:
        """Direction, level, subtree, its copy, and port of one link."""
        side, rest = divmod(int(link), self.first[-1])
        level = max(i for i in range(len(self.down)) if self.first[i] <= rest)
        switch, port = divmod(rest - self.first[level], self.up[level])
        return side, level, *divmod(switch, self.copies[level]), port

    def ends(self, link: int) -> tuple[TopologyPlace, TopologyPlace]:
        """A switch and one of its parents."""
        side, level, subtree, copy, port = self._link(link)
        child = TopologyPlace(level, subtree * self.copies[level] + copy)
        above = subtree // self.down[level] * self.copies[level + 1] + copy * self.up[level] + port
        parent = TopologyPlace(level + 1, above)
        return (parent, child) if side else (child, parent)

    def link_name(self, link: int) -> str:
        """Words for one link: direction, level, subtree and port."""
        side, level, subtree, copy, port = self._link(link)
        where = f"subtree {subtree}" + (f" copy {copy}" if self.copies[level] > 1 else "")
        return f"{'down' if side else 'up'} level {level + 1}, {where}, port {port}"
