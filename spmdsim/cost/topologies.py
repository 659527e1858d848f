"""Tori, fat trees and dragonflies, and topologies from one line of text, for command lines and files.

========================================  =====================================================================
text                                      network
========================================  =====================================================================
``flat``                                  a link into and out of each rank, without shared links
``nodes:8``, ``nodes:8,rails=2``          nodes of 8 ranks, one (or two) network ports per node
``ring``                                  one ring
``torus:8x8``, ``torus:4x4x4``            2-D or 3-D torus
``fat_tree:leaf=16,over=2``               leaf switches of 16 ranks, 2:1 oversubscribed uplinks
``fat_tree:down=4x4x4,up=1x4x2``          any extended generalised fat tree
``dragonfly:groups=9,routers=4,hosts=2``  groups of fully connected routers
``rack.json``                             the links of a file; :mod:`spmdsim.cost.network_file` has its format
========================================  =====================================================================

``hop=SECONDS`` sets the time per link beyond the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod

import numpy as np

from spmdsim.cost.machine import Machine, require_machine
from spmdsim.cost.network_file import read_network
from spmdsim.cost.node_map import NodeMap
from spmdsim.cost.topology import Flat, Floats, Ints, Nodes, Routes, Topology, TopologyPlace
from spmdsim.errors import InputError, many, unknown
from spmdsim.registry import Registry
from spmdsim.wrong_calls import explained


class Torus(Topology):
    """Torus of any number of dims; one dim is a ring. Ranks are numbered in row-major order.

    Every rank has one link in each direction of each dim. A message first moves along dim 0, then along dim 1, and so
    on. At equal distance it goes in the positive direction.
    """

    def __init__(
        self, dims: tuple[int, ...], bandwidth: float, alpha: float = 0.0, hop_seconds: float = 0.0
    ) -> None:
        self.dims = dims
        self.ranks = prod(dims)
        shape = "x".join(map(str, dims))
        self.name = f"ring {shape}" if len(dims) == 1 else f"torus {shape}"
        self.alpha, self.hop_seconds = alpha, hop_seconds
        self.rank_links = 2 * len(dims)
        self.strides = tuple(prod(dims[i + 1 :]) for i in range(len(dims)))
        self.capacity = np.full(2 * len(dims) * self.ranks, float(bandwidth))

    def _legs(self, sources: Ints, targets: Ints, dim: int) -> tuple[Ints, Ints, Ints, Ints]:
        """Return the section of each message's route that goes along one dim.

        Args:
            sources: the sender of each message.
            targets: the receiver of each message.
            dim: the number of the dim.

        Returns:
            ``(position, coordinate, hops, backwards)``, four arrays with an entry per message. ``position`` is the rank
            at which the section starts: it has the target's coordinates in earlier dims, the sender's in all others.
            ``coordinate`` is its coordinate in ``dim``. ``hops`` is the number of links. ``backwards`` is 1 for the
            negative direction, else 0; at equal distance it is 0.
        """
        position = np.zeros_like(sources)
        for other, (size, stride) in enumerate(zip(self.dims, self.strides)):
            ranks = targets if other < dim else sources
            position += (ranks // stride) % size * stride
        size, stride = self.dims[dim], self.strides[dim]
        coordinate = (sources // stride) % size
        hops_ahead = ((targets // stride) % size - coordinate) % size
        backwards = (hops_ahead > size // 2).astype(np.int64) if size > 2 else np.zeros_like(hops_ahead)
        hops = np.where(backwards, size - hops_ahead, hops_ahead)
        return position, coordinate, hops, backwards

    def routes(self, sources: Ints, targets: Ints) -> Routes:
        """Return the links of each message: all hops along the first dim, then along the second, ...

        In each dim the message takes the shorter direction. For example, from rank 0 to rank 7 of a 4 x 4 torus
        it goes one hop along dim 0, to rank 4, then one hop backwards along dim 1. The result has one entry per
        message and link that it crosses; see :meth:`_link` for the numbers of the links. A message from a rank
        to itself crosses no link.

        Args:
            sources: the sender of each message.
            targets: the receiver of each message.
        """
        messages, links = [], []
        for dim, (size, stride) in enumerate(zip(self.dims, self.strides)):
            first_ranks, coordinates, hops, backwards = self._legs(sources, targets, dim)
            # One entry per hop: the number of its message, and the number of the hop within the message.
            hop_messages: Ints = np.repeat(np.arange(len(sources)), hops)
            hop_ends = np.cumsum(hops)
            hop_numbers: Ints = np.arange(len(hop_messages)) - np.repeat(hop_ends - hops, hops)
            signs: Ints = 1 - 2 * backwards[hop_messages]
            positions = (coordinates[hop_messages] + signs * hop_numbers) % size
            ranks = first_ranks[hop_messages] + (positions - coordinates[hop_messages]) * stride
            links.append(self._link(dim, backwards[hop_messages], ranks))
            messages.append(hop_messages)
        return Routes(np.concatenate(messages), np.concatenate(links), len(sources))

    def _link(self, dim: int, backwards: Ints | int, rank: Ints) -> Ints:
        """Return the numbers of the links that leave ranks along a dim.

        A number is ``(2 * dim + backwards) * ranks + rank``: each direction of each dim has one link per rank.
        """
        links: Ints = (2 * dim + backwards) * self.ranks + rank
        return links

    def hops(self, sources: Ints, targets: Ints) -> Ints:
        """Return the distance of each message without listing its links."""
        return sum(  # type: ignore[return-value]
            self._legs(sources, targets, dim)[2] for dim in range(len(self.dims))
        )

    def loads(self, sources: Ints, targets: Ints, weights: Floats) -> Floats:
        """Return the load of each link: the sum of the weights of the messages that cross it.

        Messages take the links of :meth:`routes`; a message to its sender adds nothing. The result has one load per
        link, indexed by link number (:meth:`_link`). Running sums along the rings are used, so the time grows with the
        numbers of messages and ranks, not with the number of hops.

        Args:
            sources: the sender of each message.
            targets: the receiver of each message.
            weights: what each message adds to the load of its links, such as its bytes.
        """
        total = np.zeros(len(self.capacity))
        for dim, (size, stride) in enumerate(zip(self.dims, self.strides)):
            positions, starts, hops, backwards = self._legs(sources, targets, dim)
            ring_starts = positions - starts * stride  # the rank with coordinate 0 on the same ring
            for direction in (0, 1):
                indices = np.flatnonzero((backwards == direction) & (hops > 0))
                if not len(indices):
                    continue
                # A path backwards covers the links of a path forwards that ends at the start of the message.
                first = starts[indices] if direction == 0 else (starts[indices] - hops[indices] + 1) % size
                link_loads = self._ring_sums(
                    ring_starts[indices], first, hops[indices], weights[indices], size, stride
                )
                total[self._link(dim, direction, np.arange(self.ranks))] += link_loads
        return total

    def _ring_sums(
        self, line: Ints, first: Ints, hops: Ints, weights: Floats, size: int, stride: int
    ) -> Floats:
        """Return the load of each link in one direction of a dim, by running sums along its rings.

        For example, a message of weight 5 with ``first`` 3 and 2 hops on a ring of 4 positions adds 5 to the
        links at the positions 3 and 0.

        Args:
            line: for each message, the first rank of its ring.
            first: for each message, the position in the ring of the first link that it uses.
            hops: for each message, the number of links that it uses, at most ``size``; it may wrap around.
            weights: for each message, what it adds to the load of each of these links.
            size: the number of positions of a ring.
            stride: the distance between neighbouring ranks of a ring.

        Returns:
            The load of the link that leaves each rank of the torus in this direction, in the order of ranks.
        """
        # Unroll each ring twice, so that a message that wraps around is one interval, and add the two laps at the end.
        wide = 2 * size
        # Number the rings consecutively: remove the dim's coordinate from the number of the ring's first rank.
        ring = line // (stride * size) * stride + line % stride
        marks = np.zeros((self.ranks // size) * (wide + 1))
        marks += np.bincount(ring * (wide + 1) + first, weights, minlength=len(marks))
        marks -= np.bincount(ring * (wide + 1) + first + hops, weights, minlength=len(marks))
        sums = np.cumsum(marks.reshape(-1, wide + 1), axis=1)[:, :wide]
        folded = sums[:, :size] + sums[:, size:]
        # From [block of rings, ring in the block, position] to the order of ranks.
        return folded.reshape(-1, stride, size).transpose(0, 2, 1).reshape(-1)

    def link_name(self, link: int) -> str:
        """Return the name of a link: the rank that it leaves, its direction and its dim."""
        direction, rank = divmod(int(link), self.ranks)
        return f"{rank} {'-' if direction % 2 else '+'} dim {direction // 2}"

    def ends(self, link: int) -> tuple[TopologyPlace, TopologyPlace]:
        """Return the rank that a link leaves and its neighbour that it reaches, both in tier 0.

        For example, the link ``3 + dim 0`` of a ring of 4 goes from rank 3 to rank 0.
        """
        direction, rank = divmod(int(link), self.ranks)  # 0 is + dim 0, 1 is - dim 0, 2 is + dim 1 ...
        dim, is_backwards = divmod(direction, 2)
        size, stride = self.dims[dim], self.strides[dim]
        coordinate = rank // stride % size
        neighbour = (coordinate + (-1 if is_backwards else 1)) % size
        return TopologyPlace(0, rank), TopologyPlace(0, rank + (neighbour - coordinate) * stride)


class FatTree(Topology):
    """Extended generalised fat tree.

    A switch of level i has ``down[i]`` children, each with ``up[i]`` parents. A message climbs to the lowest common
    ancestor and comes down. Its target alone decides which of several parents it takes (destination modulo ports), as
    in most static routings.

    Attributes:
        down: children per switch, from the leaves up; their product is the number of ranks.
        up: parents per child, from the leaves up. A switch of level i - 1 has ``down[i-1]`` links down and ``up[i]``
            links up; their quotient is its oversubscription.

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
        self.rank_links = up[0]

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
        """Return a tree of two levels: leaf switches, and spine switches above them.

        A leaf switch has ``leaf`` ranks and ``leaf / oversubscription`` uplinks. The number of uplinks is rounded, and
        at least 1. Each uplink of a leaf switch goes to another spine switch.

        Args:
            ranks: number of ranks.
            leaf: ranks of a leaf switch.
            oversubscription: ranks per uplink of a leaf switch, from 1 on.
            bandwidth: bytes per second of each link.
            alpha: seconds per message.
            hop_seconds: seconds per link beyond the first.

        Raises:
            InputError: If ``leaf`` does not divide the ranks, or ``oversubscription`` is below 1.
        """
        if ranks % leaf:
            have = many(ranks, "rank does", "ranks do")
            raise InputError(f"{have} not fill leaf switches of {leaf}; choose a divisor")
        if not oversubscription >= 1:
            raise InputError(f"oversubscription must be 1 (none) or more, got {oversubscription}")
        uplinks = max(1, round(leaf / oversubscription))
        return cls((leaf, ranks // leaf), (1, uplinks), bandwidth, alpha, hop_seconds)

    def routes(self, sources: Ints, targets: Ints) -> Routes:
        """Return the links of each message: up on the sender's side, down on the receiver's side.

        A message rises to the lowest level whose subtree contains both ends. The receiver's number chooses the
        port upwards: at the lowest level, its remainder by the number of ports; at the next level, the
        quotient's remainder; and so on. For example, with 2 ports per level, receiver 6 (binary 110) has the
        ports 0, 1 and 1.

        The links of a message are listed level by level, not in the order of its way; see :meth:`_link` for the
        parts of a link's number. A message from a rank to itself crosses no link.

        Args:
            sources: the sender of each message.
            targets: the receiver of each message.
        """
        messages, links = [], []
        switch_copies = np.zeros_like(sources)  # for each message, which copy of the switch it passes
        for level in range(len(self.down)):
            # A message uses the links above this level while both ends are in different subtrees.
            is_rising = sources // self.below[level] != targets // self.below[level]
            rising = np.flatnonzero(is_rising)
            ports = targets // self.copies[level] % self.up[level]
            for side, ends in enumerate((sources, targets)):
                subtrees = ends[rising] // self.below[level]
                switches = subtrees * self.copies[level] + switch_copies[rising]
                positions = switches * self.up[level] + ports[rising]
                links.append(side * self.first[-1] + self.first[level] + positions)
                messages.append(rising)
            switch_copies = switch_copies * self.up[level] + ports
        return Routes(np.concatenate(messages), np.concatenate(links), len(sources))

    def _link(self, link: int) -> tuple[int, int, int, int, int]:
        """Return ``(direction, level, subtree, copy, port)`` of a link.

        The direction is 0 for up, 1 for down. The lower end of the link is a rank (level 0) or a switch above the
        subtree ``subtree`` of its level. ``copy`` is the number of this switch among the ``copies[level]`` switches of
        the subtree, and ``port`` the number of the link among its links up.
        """
        side, index = divmod(int(link), self.first[-1])
        level = max(i for i in range(len(self.down)) if self.first[i] <= index)
        switch, port = divmod(index - self.first[level], self.up[level])
        return side, level, *divmod(switch, self.copies[level]), port

    def ends(self, link: int) -> tuple[TopologyPlace, TopologyPlace]:
        """Return the two ends of a link: ``(child, parent)`` upwards, ``(parent, child)`` downwards.

        A child is a rank or a switch; its parent is a switch one tier above.
        """
        is_downward, level, subtree, copy, port = self._link(link)
        child = TopologyPlace(level, subtree * self.copies[level] + copy)
        # A port of a switch leads to one copy of the parent, so copies of the parent are numbered by copy and port.
        above = subtree // self.down[level] * self.copies[level + 1] + copy * self.up[level] + port
        parent = TopologyPlace(level + 1, above)
        return (parent, child) if is_downward else (child, parent)

    def link_name(self, link: int) -> str:
        """Return the name of a link: its direction, level, subtree and port."""
        side, level, subtree, copy, port = self._link(link)
        where = f"subtree {subtree}" + (f" copy {copy}" if self.copies[level] > 1 else "")
        return f"{'down' if side else 'up'} level {level + 1}, {where}, port {port}"


class Dragonfly(Topology):
    """Dragonfly network with minimal routing: at most one local, one global and one local link.

    Each of the ``groups`` groups has ``routers`` routers, which are all connected with one another. Each router has
    ``hosts`` ranks. Global links connect groups; their bandwidth is ``global_bandwidth``, or ``bandwidth`` if it is
    None.

    >>> Dragonfly(9, 4, 2, bandwidth=1e9).ranks
    72
    """

    def __init__(
        self,
        groups: int,
        routers: int,
        hosts: int,
        bandwidth: float,
        alpha: float = 0.0,
        hop_seconds: float = 0.0,
        global_bandwidth: float | None = None,
    ) -> None:
        self.name = f"dragonfly {many(groups, 'group')} x {many(routers, 'router')} x {many(hosts, 'host')}"
        if min(groups, routers, hosts) < 1:
            raise InputError(f"the shape of a {self.name} must have 1 rank or more, got 0")
        self.groups, self.routers, self.hosts = groups, routers, hosts
        self.ranks = groups * routers * hosts
        self.alpha, self.hop_seconds = alpha, hop_seconds
        #: Global links that end at one router, so that a group reaches all others.
        self.per_router = -(-(groups - 1) // routers) if groups > 1 else 1
        #: Links are numbered: out of each rank, into each rank, local ones by group and routers, global ones by groups.
        self.first_local = 2 * self.ranks
        self.first_global = self.first_local + groups * routers * routers
        self.capacity = np.full(self.first_global + groups * groups, float(bandwidth))
        self.capacity[self.first_global :] = global_bandwidth or bandwidth

    def _gateway(self, group: Ints, target_group: Ints) -> Ints:
        """Return the number, inside its group, of the router with the global link to a target group.

        Each router has ``per_router`` global links: router 0 to the next groups, router 1 to those behind them, and so
        on. Numbers of groups wrap.
        """
        return (target_group - group - 1) % self.groups // self.per_router

    def routes(self, sources: Ints, targets: Ints) -> Routes:
        """Return the links that each message crosses: out, in, and up to three between routers.

        Two links lead out of the sender and into the receiver. Between routers, a message takes at most one link inside
        the sender's group, one between the groups, and one inside the receiver's group. Inside a group it takes the
        direct link of the two routers. A message from a rank to itself crosses no link.

        Links are numbered in this order: from 0 out of ranks, from ``ranks`` into ranks, from ``first_local`` between
        routers of a group, from ``first_global`` between groups.

        Args:
            sources: the sender of each message.
            targets: the receiver of each message.

        Returns:
            A flat list of pairs (message, link), up to five per message. The pairs are grouped by the kind of link, not
            by message: out of senders, into receivers, inside the sender's group (or inside the common group),
            between groups, inside the receiver's group.
        """
        per_group = self.routers * self.hosts
        source_groups, target_groups = sources // per_group, targets // per_group
        source_routers = sources // self.hosts % self.routers
        target_routers = targets // self.hosts % self.routers
        far = source_groups != target_groups
        leave = np.where(far, self._gateway(source_groups, target_groups), target_routers)
        enter = np.where(far, self._gateway(target_groups, source_groups), target_routers)
        moving = sources != targets
        # First local link of each router's row: the links from one router to all routers of its group.
        source_rows = self.first_local + (source_groups * self.routers + source_routers) * self.routers
        enter_rows = self.first_local + (target_groups * self.routers + enter) * self.routers
        candidates = [
            (moving, sources),
            (moving, self.ranks + targets),
            (moving & (source_routers != leave), source_rows + leave),
            (far, self.first_global + source_groups * self.groups + target_groups),
            (far & (enter != target_routers), enter_rows + target_routers),
        ]
        messages = [np.flatnonzero(is_crossed) for is_crossed, _ in candidates]
        links = [links_of_all[crossing] for crossing, (_, links_of_all) in zip(messages, candidates)]
        return Routes(np.concatenate(messages), np.concatenate(links), len(sources))

    def link_name(self, link: int) -> str:
        """Return the name of a link.

        * ``out of 3``, ``into 3``: between rank 3 and its router.
        * ``group 0: router 1 to 2``: between two routers of a group.
        * ``group 0 to group 3``: between two groups.
        """
        link = int(link)
        if link < self.first_local:
            return f"out of {link}" if link < self.ranks else f"into {link - self.ranks}"
        if link < self.first_global:
            group, pair = divmod(link - self.first_local, self.routers * self.routers)
            return f"group {group}: router {pair // self.routers} to {pair % self.routers}"
        source, target = divmod(link - self.first_global, self.groups)
        return f"group {source} to group {target}"

    def ends(self, link: int) -> tuple[TopologyPlace, TopologyPlace]:
        """Return ``(from, to)`` of a link: a rank (tier 0) and a router (tier 1), or two routers.

        Routers are numbered over all groups. A link between groups connects the routers that have it
        (:meth:`_gateway`).
        """
        link = int(link)
        if link < self.first_local:
            rank = TopologyPlace(0, link % self.ranks)
            router = TopologyPlace(1, rank.number // self.hosts)
            return (rank, router) if link < self.ranks else (router, rank)
        if link < self.first_global:
            group, pair = divmod(link - self.first_local, self.routers * self.routers)
            first, second = (group * self.routers + router for router in divmod(pair, self.routers))
            return TopologyPlace(1, first), TopologyPlace(1, second)
        a, b = np.divmod(np.array([link - self.first_global]), self.groups)
        leave, enter = a * self.routers + self._gateway(a, b), b * self.routers + self._gateway(b, a)
        return TopologyPlace(1, int(leave[0])), TopologyPlace(1, int(enter[0]))


#: Default seconds per link beyond the first, typical of a current switch.
HOP_SECONDS = 1e-7


class Options(dict[str, str]):
    """Option values by name from the text of a topology.

    ``names`` are the options that were looked up.
    """

    def __init__(self, pairs: Iterable[Sequence[str]]) -> None:
        super().__init__((key.strip(), value.strip()) for key, value in pairs)
        self.names: dict[str, None] = {}

    def __contains__(self, key: object) -> bool:
        self.names[str(key)] = None
        return super().__contains__(key)

    def take(self, key: str) -> str | None:
        """Remove an option and return its text, or None if it is missing.

        Its name is recorded as supported.
        """
        return self.pop(key) if key in self else None


@explained
def parse_topology(text: str, ranks: int, machine: Machine) -> Topology:
    """Build the topology that a text describes, with the bandwidth and latency of a machine.

    Args:
        text: a name, and options after a colon, as in the table of the module's text. "-" in a name counts as "_". Or the
            path of a file that ends with ".json".
        ranks: number of ranks; the topology must have as many.
        machine: its beta is the time per byte of every link, its alpha the time per message. Inside nodes, the numbers
            of its ``intra`` link are used, if it has one.

    Raises:
        InputError: If the name or an option is unknown or has a wrong value, the machine's beta is 0, or the shape does
            not have this many ranks.

    >>> parse_topology("torus:4x4", 16, Machine.laptop()).name
    'torus 4x4'
    """
    require_machine(machine, "parse_topology")
    if str(text).endswith(".json"):
        network = read_network(str(text), _bandwidth(machine), machine.alpha, HOP_SECONDS)
        return _require_ranks(network, ranks)
    name, _, settings = str(text).partition(":")
    words = [word.strip() for word in settings.split(",") if word.strip()]
    options = Options(word.split("=", 1) if "=" in word else ["shape", word] for word in words)
    if name.replace("-", "_") not in TOPOLOGIES:
        raise unknown(
            f"unknown topology {name!r}",
            name,
            TOPOLOGIES,
            listed="known are a file that ends with .json, and",
        )
    topology = TOPOLOGIES[name.replace("-", "_")](options, ranks, machine)
    if options:
        word = next(iter(options))
        raise unknown(
            f"topology {text!r}: unknown option {word!r}", word, options.names or ["none"], listed="known are"
        )
    return _require_ranks(topology, ranks)


def _require_ranks(topology: Topology, ranks: int) -> Topology:
    """Return the topology; raise InputError if it has another number of ranks than ``ranks``."""
    if topology.ranks != ranks:
        raise InputError(
            f"{topology.name} has {many(topology.ranks, 'rank')}, not {ranks}; the shape must have as many ranks"
        )
    return topology


def _parse_number(options: Options, key: str, default: float | None = None) -> float:
    """Remove an option and return its value as a number; ``default`` if it is missing.

    Args:
        options: the options of the topology, which lose this one.
        key: the name of the option.
        default: None if the option is required.

    Raises:
        InputError: If it is no number, is negative or infinite, or is missing without a default.
    """
    text = options.take(key)
    if text is None:
        if default is None:
            raise InputError(f"this topology needs {key}=NUMBER")
        return default
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"topology option {key}={text!r} has to be a number") from None
    if not 0 <= value < float("inf"):
        raise InputError(f"topology option {key}={text!r} has to be a number >= 0")
    return value


def _whole_number(options: Options, key: str, default: int | None = None) -> int:
    """Remove an option and return it as a whole number from 1 on; ``default`` if it is missing."""
    value = _parse_number(options, key, default)
    if value != int(value) or value < 1:
        raise InputError(f"topology option {key}={value:g} has to be a whole number >= 1")
    return int(value)


def _parse_shape(options: Options, key: str) -> tuple[int, ...]:
    """Remove a shape such as "4x4" from the options; return its sizes, such as (4, 4).

    Args:
        options: the options of the topology, which lose this one.
        key: the name of the option.

    Raises:
        InputError: If the option is missing or no shape, or a size is below 1.
    """
    text = options.take(key) or ""
    try:
        shape = tuple(int(size) for size in text.lower().split("x"))
    except ValueError:
        raise InputError(f"topology shape {text!r} has to be sizes with x between, such as 4x4") from None
    if min(shape) < 1:
        raise InputError(f"topology shape {text!r} has to have sizes >= 1")
    return shape


def _bandwidth(machine: Machine) -> float:
    """Return the bytes per second of a link; raise InputError if the machine's beta is 0."""
    if machine.beta <= 0:
        raise InputError(f"machine {machine.name!r} must have a beta above 0 for a topology, got 0")
    return 1 / machine.beta


def _flat(_: Options, ranks: int, machine: Machine) -> Topology:
    """Build the flat network."""
    return Flat(ranks, _bandwidth(machine), machine.alpha)


def _build_nodes(options: Options, ranks: int, machine: Machine) -> Topology:
    """Build a network of nodes, whose ranks share the node's network ports.

    The option without a name (key ``shape``) is the number of ranks per node; the ranks are then placed consecutively.
    Without it, the machine's own node map places them, which needs a machine with a link inside nodes (``intra``).
    ``rails`` is the number of network ports per node, by default 1.

    Args:
        options: the options, of which the known ones are removed.
        ranks: the number of ranks.
        machine: its ``intra`` link gives bandwidth and latency inside nodes; without ``intra``, its plain ones do.

    Raises:
        InputError: If an option is wrong, the number of ranks per node is unknown, or a beta is 0.
    """
    if "shape" in options or machine.intra is None:
        nodes = NodeMap.consecutive(ranks, _whole_number(options, "shape"))
    else:
        nodes = machine.node_map(ranks)
    rails = _whole_number(options, "rails", 1)
    inside = machine.intra
    beta, alpha = (inside.beta, inside.alpha) if inside else (machine.beta, machine.alpha)
    if beta <= 0:
        raise InputError(f"machine {machine.name!r} must have an intra beta above 0 for a topology, got 0")
    return Nodes(nodes, _bandwidth(machine), 1 / beta, rails, machine.alpha, alpha)


def _torus(options: Options, ranks: int, machine: Machine) -> Topology:
    """Build a torus; without a shape, build a ring over all ranks."""
    shape = _parse_shape(options, "shape") if "shape" in options else (ranks,)
    hop = _parse_number(options, "hop", HOP_SECONDS)
    return Torus(shape, _bandwidth(machine), machine.alpha, hop)


def _build_fat_tree(options: Options, ranks: int, machine: Machine) -> Topology:
    """Build a fat tree, by ``down`` and ``up``, or by ``leaf`` and ``over``.

    ``down`` and ``up`` are shapes of equal length; both are needed if one is stated. ``leaf`` is the number of ranks of
    a leaf switch, by default 16 or all ranks if they are fewer; ``over`` is the oversubscription, by default 1. ``hop``
    is the time per link beyond the first, by default :data:`HOP_SECONDS`.
    """
    hop = _parse_number(options, "hop", HOP_SECONDS)
    if "down" in options or "up" in options:
        down, up = _parse_shape(options, "down"), _parse_shape(options, "up")
        return FatTree(down, up, _bandwidth(machine), machine.alpha, hop)
    leaf, over = _whole_number(options, "leaf", min(16, ranks)), _parse_number(options, "over", 1.0)
    return FatTree.two_level(ranks, leaf, over, _bandwidth(machine), machine.alpha, hop)


def _dragonfly(options: Options, ranks: int, machine: Machine) -> Topology:
    """Build a dragonfly.

    Without options there are 4 ``routers`` per group, 2 ``hosts`` per router, and as many ``groups`` as the ranks fill.
    """
    hop = _parse_number(options, "hop", HOP_SECONDS)
    routers, hosts = _whole_number(options, "routers", 4), _whole_number(options, "hosts", 2)
    groups = _whole_number(options, "groups", max(1, ranks // (routers * hosts)))
    return Dragonfly(groups, routers, hosts, _bandwidth(machine), machine.alpha, hop)


#: Networks by name: functions that build one from its options, the number of ranks and the machine.
TOPOLOGIES: Registry[Callable[[Options, int, Machine], Topology]] = Registry(
    "topology",
    {
        "flat": _flat,
        "nodes": _build_nodes,
        "ring": _torus,
        "torus": _torus,
        "fat_tree": _build_fat_tree,
        "dragonfly": _dragonfly,
    },
)
