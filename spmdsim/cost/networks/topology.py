"""Networks: links with a capacity, and the route of every message over them.

A topology knows its directed links and, for arrays of senders and receivers, which links each message crosses.
Routing is static and shortest. Everything is vectorised over messages; nothing is stored per pair of ranks.

>>> ring = torus((8,), bandwidth=1e9)
>>> routes = ring.routes(np.array([0]), np.array([3]))
>>> [ring.link_name(link) for link in routes.links]
['0 + dim 0', '1 + dim 0', '2 + dim 0']
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spmdsim.errors import InputError
from spmdsim.pictured import Pictured

if TYPE_CHECKING:
    from spmdsim.cost.networks.torus import Torus

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Routes:
    """Which links each message crosses: message ``messages[i]`` crosses link ``links[i]``.

    Attributes:
        messages: indices of messages, one entry per hop.
        links: indices of links, of the same length.
        count: number of messages.
    """

    messages: Ints
    links: Ints
    count: int

    @property
    def hops(self) -> Ints:
        """Links crossed by each message."""
        return np.bincount(self.messages, minlength=self.count)


class TopologyPlace(NamedTuple):
    """Where links begin and end: a rank (tier 0), or a switch or router above it.

    Attributes:
        tier: 0 for ranks; what is further from them has a higher one.
        number: its number in the tier.
    """

    tier: int
    number: int

    def __str__(self) -> str:
        return f"switch {self.number} of tier {self.tier}" if self.tier else f"rank {self.number}"


class Topology(Pictured, ABC):
    """A network of ``ranks`` ranks.

    Attributes:
        name: shown in tables.
        ranks: number of ranks.
        capacity: bytes per second of each directed link.
        alpha: seconds per message, spent by the software.
        hop_seconds: seconds per link beyond the first.

    >>> from spmdsim.cost import Machine, parse_topology
    >>> parse_topology("torus:4x4", 16, Machine.laptop()).hop_seconds
    1e-07
    """

    name: str
    ranks: int
    capacity: Floats
    alpha: float = 0.0
    hop_seconds: float = 0.0

    def __repr__(self) -> str:
        return f"<topology {self.name}>"

    @abstractmethod
    def routes(self, sources: Ints, targets: Ints) -> Routes:
        """The links of each message from ``sources[i]`` to ``targets[i]``; a message to oneself crosses none."""

    @abstractmethod
    def link_name(self, link: int) -> str:
        """Words for one link."""

    @abstractmethod
    def ends(self, link: int) -> tuple[TopologyPlace, TopologyPlace]:
        """Where a link begins and ends: each message's links are a way from its sender to its receiver."""

    def hops(self, sources: Ints, targets: Ints) -> Ints:
        """Links crossed by each message."""
        return self.routes(sources, targets).hops

    def loads(self, sources: Ints, targets: Ints, weights: Floats) -> Floats:
        """Sum of the weights of the messages on each link."""
        routes = self.routes(sources, targets)
        sums = np.bincount(routes.links, weights[routes.messages], minlength=len(self.capacity))
        return sums.astype(np.float64)

    def latency(self, sources: Ints, targets: Ints) -> Floats:
        """Seconds of each message besides its bytes: the software's share and the hops beyond the first."""
        hops = self.hops(sources, targets)
        return np.asarray(self.alpha + np.maximum(hops - 1, 0) * self.hop_seconds, dtype=np.float64)


class Flat(Topology):
    """Every rank has its own link into and out of a network without bottlenecks."""

    def __init__(self, ranks: int, bandwidth: float, alpha: float = 0.0) -> None:
        self.name = "flat"
        self.ranks, self.alpha = ranks, alpha
        self.capacity = np.full(2 * ranks, float(bandwidth))

    def routes(self, sources: Ints, targets: Ints) -> Routes:
        """Out of the sender, into the receiver."""
        moving = np.flatnonzero(sources != targets)
        links = np.concatenate([sources[moving], self.ranks + targets[moving]])
        return Routes(np.concatenate([moving, moving]), links, len(sources))

    def link_name(self, link: int) -> str:
        """Words for one link."""
        return f"out of {link}" if link < self.ranks else f"into {link - self.ranks}"

    def ends(self, link: int) -> tuple[TopologyPlace, TopologyPlace]:
        """A rank and the network, in the link's direction."""
        return _up_or_down(link, self.ranks, TopologyPlace(1, 0))


def _up_or_down(link: int, ranks: int, above: TopologyPlace) -> tuple[TopologyPlace, TopologyPlace]:
    """The ends of a rank's own link: the first ones go up, the others down."""
    return (TopologyPlace(0, link), above) if link < ranks else (above, TopologyPlace(0, link - ranks))


class Nodes(Topology):
    """Nodes of several ranks: a fast link per rank inside, ``rails`` network ports per node shared by its ranks."""

    def __init__(
        self,
        ranks: int,
        per_node: int,
        bandwidth: float,
        inside_bandwidth: float,
        rails: int = 1,
        alpha: float = 0.0,
        inside_alpha: float = 0.0,
    ) -> None:
        self.name = f"nodes of {per_node}"
        self.ranks, self.per_node, self.alpha, self.inside_alpha = ranks, per_node, alpha, inside_alpha
        self.nodes = -(-ranks // per_node)
        inside = np.full(2 * ranks, float(inside_bandwidth))
        self.capacity = np.concatenate([inside, np.full(2 * self.nodes, float(bandwidth) * rails)])

    def routes(self, sources: Ints, targets: Ints) -> Routes:
        """Inside a node two links; between nodes also the ports of both nodes."""
        moving = np.flatnonzero(sources != targets)
        s, t = sources[moving], targets[moving]
        a, b = s // self.per_node, t // self.per_node
        far = a != b
        base = 2 * self.ranks
        links = [s, self.ranks + t, base + a[far], base + self.nodes + b[far]]
        messages = [moving, moving, moving[far], moving[far]]
        return Routes(np.concatenate(messages), np.concatenate(links), len(sources))

    def latency(self, sources: Ints, targets: Ints) -> Floats:
        """Seconds of each message besides its bytes: less inside a node."""
        inside = sources // self.per_node == targets // self.per_node
        return np.where(inside, self.inside_alpha, self.alpha)

    def link_name(self, link: int) -> str:
        """Words for one link."""
        if link < 2 * self.ranks:
            return f"out of {link}" if link < self.ranks else f"into {link - self.ranks}"
        node = link - 2 * self.ranks
        return f"node {node} out" if node < self.nodes else f"node {node - self.nodes} in"

    def ends(self, link: int) -> tuple[TopologyPlace, TopologyPlace]:
        """A rank and its node, or a node and the network, in the link's direction."""
        if link < 2 * self.ranks:
            return _up_or_down(link, self.ranks, TopologyPlace(1, link % self.ranks // self.per_node))
        node, network = (link - 2 * self.ranks) % self.nodes, TopologyPlace(2, 0)
        out = link < 2 * self.ranks + self.nodes
        return (TopologyPlace(1, node), network) if out else (network, TopologyPlace(1, node))


def torus(dims: tuple[int, ...], bandwidth: float, alpha: float = 0.0, hop_seconds: float = 0.0) -> Torus:
    """A ring (one dim) or torus; see :class:`spmdsim.cost.networks.torus.Torus`."""
    from spmdsim.cost.networks.torus import Torus

    return Torus(dims, bandwidth, alpha, hop_seconds)


def check_ranks(name: str, ranks: int, wanted: int) -> None:
    """Refuse a topology that does not have the wanted number of ranks."""
    if ranks != wanted:
        raise InputError(
            f"{name} has {ranks} ranks, not {wanted}; the shape and the number of ranks have to agree"
        )
