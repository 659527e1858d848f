"""Networks: links with a capacity, the route of every message, and the sharing of links in a round.

A topology knows its directed links and, for arrays of senders and receivers, the links that each message crosses.
Routing is static and shortest. All functions work on arrays of messages; no data are stored per pair of ranks.

>>> flat = Flat(8, bandwidth=1e9)
>>> [flat.link_name(link) for link in flat.routes(np.array([0]), np.array([3])).links]
['out of 0', 'into 3']
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spmdsim.cost.node_map import NodeMap
from spmdsim.errors import many
from spmdsim.pictured import Pictured

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Routes:
    """Links of ``count`` messages: message ``messages[i]`` crosses link ``links[i]``, hop by hop."""

    messages: Ints
    links: Ints
    count: int

    @property
    def hops(self) -> Ints:
        """Number of links that each message crosses."""
        return np.bincount(self.messages, minlength=self.count)


class TopologyPlace(NamedTuple):
    """An end of a link: a rank (tier 0), or a switch or router in a higher tier."""

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
        rank_links: number of links that leave a rank, and of those that reach it; link 0 is one of them.

    >>> from spmdsim.cost import Machine, parse_topology
    >>> parse_topology("torus:4x4", 16, Machine.laptop()).hop_seconds
    1e-07
    """

    name: str
    ranks: int
    capacity: Floats
    alpha: float = 0.0
    hop_seconds: float = 0.0
    rank_links: int = 1

    def __repr__(self) -> str:
        return f"<topology {self.name}>"

    @abstractmethod
    def routes(self, sources: Ints, targets: Ints) -> Routes:
        """Return the numbers of the links that each message from ``sources[i]`` to ``targets[i]`` crosses.

        A message from a rank to itself crosses no link.
        """

    @abstractmethod
    def link_name(self, link: int) -> str:
        """Return the name of a link."""

    @abstractmethod
    def ends(self, link: int) -> tuple[TopologyPlace, TopologyPlace]:
        """Return the two ends of a link.

        The links of a message form a path from its sender to its receiver.
        """

    def hops(self, sources: Ints, targets: Ints) -> Ints:
        """Return the number of links that each message crosses."""
        return self.routes(sources, targets).hops

    def loads(self, sources: Ints, targets: Ints, weights: Floats) -> Floats:
        """Sum the weights of the messages on each link."""
        routes = self.routes(sources, targets)
        sums = np.bincount(routes.links, weights[routes.messages], minlength=len(self.capacity))
        return sums.astype(np.float64)

    def latency(self, sources: Ints, targets: Ints) -> Floats:
        """Return the seconds of each message besides its bytes: software, and hops beyond the first."""
        hops = self.hops(sources, targets)
        return np.asarray(self.alpha + np.maximum(hops - 1, 0) * self.hop_seconds, dtype=np.float64)


class Flat(Topology):
    """A network without bottlenecks: every rank has its own link into it and out of it."""

    def __init__(self, ranks: int, bandwidth: float, alpha: float = 0.0) -> None:
        self.name = "flat"
        self.ranks, self.alpha = ranks, alpha
        self.capacity = np.full(2 * ranks, float(bandwidth))

    def routes(self, sources: Ints, targets: Ints) -> Routes:
        """Return the links of each message: the link out of the sender, then the link into the receiver.

        Link ``r`` leads out of rank ``r``, link ``ranks + r`` into rank ``r``. A message from a rank to itself crosses
        no link.
        """
        moving = np.flatnonzero(sources != targets)
        links_out, links_in = sources[moving], self.ranks + targets[moving]
        links = np.concatenate([links_out, links_in])
        return Routes(np.concatenate([moving, moving]), links, len(sources))

    def link_name(self, link: int) -> str:
        """Return the name of a link."""
        return f"out of {link}" if link < self.ranks else f"into {link - self.ranks}"

    def ends(self, link: int) -> tuple[TopologyPlace, TopologyPlace]:
        """Return a rank and the network, in the link's direction."""
        return _up_or_down(link, self.ranks, TopologyPlace(1, 0))


def _up_or_down(link: int, ranks: int, above: TopologyPlace) -> tuple[TopologyPlace, TopologyPlace]:
    """Return the two ends of a rank's own link, in its direction.

    Link ``r`` leads from rank ``r`` to ``above``, link ``ranks + r`` from ``above`` to rank ``r``.
    """
    return (TopologyPlace(0, link), above) if link < ranks else (above, TopologyPlace(0, link - ranks))


class Nodes(Topology):
    """Network of nodes with several ranks each.

    Each rank has a fast link inside its node, and the ranks of a node share ``rails`` network ports.

    Args:
        nodes: the node of each rank.
        bandwidth: bytes per second of a port, in each direction; may be infinite.
        inside_bandwidth: bytes per second of a rank's link; may be infinite.
        rails: number of ports of a node.
        alpha: seconds per message between nodes.
        inside_alpha: seconds per message inside a node.

    >>> network = Nodes(NodeMap.of("a:2,b:2", 4), bandwidth=1e9, inside_bandwidth=1e10)
    >>> [network.link_name(link) for link in network.routes(np.array([0]), np.array([3])).links]
    ['out of 0', 'into 3', 'node 0 out', 'node 1 in']
    """

    def __init__(
        self,
        nodes: NodeMap,
        bandwidth: float,
        inside_bandwidth: float,
        rails: int = 1,
        alpha: float = 0.0,
        inside_alpha: float = 0.0,
    ) -> None:
        per_node = nodes.ranks_per_node
        self.name = f"nodes of {per_node}" if per_node else f"{many(nodes.count, 'node')}"
        self.nodes, self.ranks, self.alpha, self.inside_alpha = nodes, nodes.size, alpha, inside_alpha
        self.bandwidth, self.inside_bandwidth = float(bandwidth) * rails, float(inside_bandwidth)
        self.rails = rails

    @cached_property
    def capacity(self) -> Floats:  # type: ignore[override]
        """Bytes per second of each link: those of the ranks, then the ports."""
        inside = np.full(2 * self.ranks, self.inside_bandwidth)
        return np.concatenate([inside, np.full(2 * self.nodes.count, self.bandwidth)])

    def routes(self, sources: Ints, targets: Ints) -> Routes:
        """Return the links of each message: the two ranks'; between nodes also both nodes' ports.

        Link ``r`` leads out of rank ``r``, link ``ranks + r`` into rank ``r``. After them come the ports out of
        the nodes, then the ports into the nodes. For example, with 4 ranks on 2 nodes, the message from rank 0
        to rank 3 crosses the links 0, 7, 8 and 11. A message from a rank to itself crosses no link.

        Args:
            sources: the sender of each message.
            targets: the receiver of each message.
        """
        moving = np.flatnonzero(sources != targets)
        senders, receivers = sources[moving], targets[moving]
        source_nodes, target_nodes = self.nodes.nodes[senders], self.nodes.nodes[receivers]
        far = source_nodes != target_nodes
        first_port_out = 2 * self.ranks
        first_port_in = first_port_out + self.nodes.count
        links = [
            senders,
            self.ranks + receivers,
            first_port_out + source_nodes[far],
            first_port_in + target_nodes[far],
        ]
        messages = [moving, moving, moving[far], moving[far]]
        return Routes(np.concatenate(messages), np.concatenate(links), len(sources))

    def latency(self, sources: Ints, targets: Ints) -> Floats:
        """Return the seconds of each message besides its bytes; they are fewer inside a node."""
        return np.where(self.are_inside(sources, targets), self.inside_alpha, self.alpha)

    def are_inside(self, sources: Ints, targets: Ints) -> NDArray[np.bool_]:
        """Return an array that is True for each message inside a node."""
        inside: NDArray[np.bool_] = self.nodes.nodes[sources] == self.nodes.nodes[targets]
        return inside

    def arrivals(
        self, sources: Ints, targets: Ints, nbytes: Floats, far_alpha: Floats, far_seconds: Floats
    ) -> Floats:
        """Return the seconds after which each message of a round arrives, as an array.

        They are the latency of the message and the time of its busiest link. A link needs the time of all its messages
        before the last of them arrives. The links are:

        * the sender's and the receiver's own link, with all that the rank sends or receives;
        * between nodes, also the ports of both nodes, with all that leaves or enters the node.

        A message from a rank to itself has a latency only.

        Args:
            sources: the sender of each message.
            targets: the receiver of each message.
            nbytes: the size of each message.
            far_alpha: the latency that each message has between nodes.
            far_seconds: the seconds that each message occupies one port between nodes.
        """
        moved = np.where(sources == targets, 0.0, nbytes)
        busy = [np.bincount(ends, moved, self.ranks)[ends] for ends in (sources, targets)]
        seconds = np.maximum(*busy) / self.inside_bandwidth
        sending_nodes, receiving_nodes = self.nodes.nodes[sources], self.nodes.nodes[targets]
        far = sending_nodes != receiving_nodes
        for nodes in (sending_nodes, receiving_nodes):
            port = np.bincount(nodes[far], far_seconds[far], self.nodes.count) / self.rails
            seconds[far] = np.maximum(seconds[far], port[nodes[far]])
        seconds += np.where(far, far_alpha, self.inside_alpha)
        return seconds

    def link_name(self, link: int) -> str:
        """Return the name of a link: ``out of 3``, ``into 3``, ``node 0 out`` or ``node 0 in``."""
        if link < 2 * self.ranks:
            return f"out of {link}" if link < self.ranks else f"into {link - self.ranks}"
        node = link - 2 * self.ranks
        count = self.nodes.count
        return f"node {node} out" if node < count else f"node {node - count} in"

    def ends(self, link: int) -> tuple[TopologyPlace, TopologyPlace]:
        """Return ``(from, to)`` of a link: a rank and its node, or a node and the network.

        A rank is in tier 0, a node in tier 1, the network in tier 2.
        """
        if link < 2 * self.ranks:
            own_node = int(self.nodes.nodes[link % self.ranks])
            return _up_or_down(link, self.ranks, TopologyPlace(1, own_node))
        node, network = (link - 2 * self.ranks) % self.nodes.count, TopologyPlace(2, 0)
        out = link < 2 * self.ranks + self.nodes.count
        return (TopologyPlace(1, node), network) if out else (network, TopologyPlace(1, node))


#: Number of hops above which a round of unequal messages is priced by its busiest link instead of flow by flow.
HOP_LIMIT = 2_000_000


def max_min_rates(routes: Routes, capacity: Floats) -> Floats:
    """Compute the bytes per second of each message under max-min fair sharing.

    All rates grow together until a link is full. Its messages keep their rate and the others grow on. The rate is
    infinite for a message that crosses no link. The result has the shape ``(routes.count,)``.

    Args:
        routes: the links of each message.
        capacity: bytes per second of each link.

    >>> two_on_one = Routes(np.array([0, 1, 1]), np.array([0, 0, 1]), 2)
    >>> max_min_rates(two_on_one, np.array([10.0, 100.0]))
    array([5., 5.])
    """
    rates = np.full(routes.count, np.inf)
    messages, links = routes.messages, routes.links
    remaining = capacity.astype(np.float64).copy()
    while len(messages):
        users = np.bincount(links, minlength=len(remaining))
        used = np.flatnonzero(users)
        share = remaining[used] / users[used]
        level = share.min()  # the rate at which the next link is full
        # Links that are full at this rate. The margin covers rounding, so that equal shares are full at once.
        full = np.zeros(len(remaining), dtype=bool)
        full[used[share <= level * (1 + 1e-12)]] = True
        # Messages that cross a full link keep this rate.
        final = np.zeros(routes.count, dtype=bool)
        final[messages[full[links]]] = True
        rates[final] = level
        is_final = final[messages]
        remaining -= np.bincount(links[is_final], minlength=len(remaining)) * level
        np.maximum(remaining, 0.0, out=remaining)
        messages, links = messages[~is_final], links[~is_final]
    return rates


def drain_seconds(routes: Routes, capacity: Floats, nbytes: Floats) -> Floats:
    """Compute the arrival time of each message, in seconds, under max-min fair sharing.

    All messages start at once. Whenever a message has arrived, the others share its links again. In the
    example, both messages move at 5 bytes/s until the first one has arrived; then the second one moves at 10
    bytes/s. A message without bytes, or that crosses no link, arrives at 0. A message has arrived when at most
    1e-9 of its bytes are left.

    Args:
        routes: the links of each message.
        capacity: bytes per second of each link.
        nbytes: the size of each message.

    >>> one_link = Routes(np.array([0, 1]), np.array([0, 0]), 2)
    >>> drain_seconds(one_link, np.array([10.0]), np.array([10.0, 30.0]))
    array([2., 4.])
    """
    arrival = np.zeros(routes.count)
    remaining = nbytes.astype(np.float64).copy()
    # Bytes up to this share of a message are rounding errors, which must not be simulated.
    negligible = nbytes * 1e-9
    now = 0.0
    messages, links = routes.messages, routes.links
    unfinished = remaining > 0
    while True:
        is_moving = unfinished[messages]
        messages, links = messages[is_moving], links[is_moving]
        if not len(messages):
            return arrival
        rates = max_min_rates(Routes(messages, links, routes.count), capacity)
        active = np.flatnonzero(unfinished & np.isfinite(rates))
        now += (step := float((remaining[active] / rates[active]).min()))
        remaining[active] -= rates[active] * step
        arrived = active[remaining[active] <= negligible[active]]
        arrival[arrived] = now
        unfinished[:] = False
        unfinished[active] = True
        unfinished[arrived] = False


def round_seconds(
    topology: Topology, sources: Ints, targets: Ints, nbytes: Floats, receive_extra: Floats | float = 0.0
) -> float:
    """Return the seconds of one round of messages that share the links of a topology; 0 if there are none.

    - If all messages have equal size: the bytes on the busiest link divided by its capacity, plus the largest sum of
      latency and extra of any message. The first term is exact, because the messages of this link get the smallest
      share and arrive last.
    - Otherwise :func:`drain_seconds` simulates the round. But if its messages cross more than ``HOP_LIMIT`` (2 million)
      links together, the formula of equal sizes is used as an estimate; its first term is then a lower limit.

    Messages without bytes take their latency only, and do not count for equal sizes.

    Args:
        topology: the network, but no :class:`Nodes`, whose messages are priced by :meth:`Nodes.arrivals`.
        sources: the sender of each message.
        targets: the receiver of each message.
        nbytes: the size of each message.
        receive_extra: seconds that each receiver needs after its message, such as for a reduction.
    """
    if not len(sources):
        return 0.0
    latency = topology.latency(sources, targets)
    moving = nbytes[nbytes > 0]
    if not len(moving):
        return float((latency + receive_extra).max())
    equal = moving.min() == moving.max()
    if equal or int(topology.hops(sources, targets).sum()) > HOP_LIMIT:
        loads = topology.loads(sources, targets, nbytes)
        busiest = float((loads / topology.capacity).max())
        return busiest + float(np.max(latency + receive_extra))
    drained = drain_seconds(topology.routes(sources, targets), topology.capacity, nbytes)
    return float((latency + drained + receive_extra).max())
