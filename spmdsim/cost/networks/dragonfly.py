"""Dragonflies: groups of fully connected routers, one global link between each pair of groups."""

from __future__ import annotations

import numpy as np

from spmdsim.cost.networks.topology import Ints, Routes, Topology, TopologyPlace
from spmdsim.errors import InputError


class Dragonfly(Topology):
    """A dragonfly with minimal routing: at most one local, one global and one local link between routers.

    Attributes:
        groups: number of groups.
        routers: routers per group, all connected with one another.
        hosts: ranks per router.

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
        if min(groups, routers, hosts) < 1:
            raise InputError(f"a dragonfly of {groups} groups, {routers} routers, {hosts} hosts has no ranks")
        self.groups, self.routers, self.hosts = groups, routers, hosts
        self.ranks = groups * routers * hosts
        self.alpha, self.hop_seconds = alpha, hop_seconds
        self.name = f"dragonfly {groups} groups x {routers} routers x {hosts} hosts"
        #: Global links that end at one router, so that a group reaches all others.
        self.per_router = -(-(groups - 1) // routers) if groups > 1 else 1
        self.local = 2 * self.ranks
        self.globe = self.local + groups * routers * routers
        self.capacity = np.full(self.globe + groups * groups, float(bandwidth))
        self.capacity[self.globe :] = global_bandwidth or bandwidth

    def _gateway(self, group: Ints, other: Ints) -> Ints:
        """The router of a group that holds the global link to another group."""
        return (other - group - 1) % self.groups // self.per_router

    def routes(self, sources: Ints, targets: Ints) -> Routes:
        """Host link, local link to the gateway, global link, local link, host link; unneeded ones left out."""
        per_group = self.routers * self.hosts
        a, b = sources // per_group, targets // per_group
        r, s = sources // self.hosts % self.routers, targets // self.hosts % self.routers
        far = a != b
        leave = np.where(far, self._gateway(a, b), s)
        enter = np.where(far, self._gateway(b, a), s)
        moving = sources != targets
        square = self.routers * self.routers
        parts = [
            (moving, sources),
            (moving, self.ranks + targets),
            (moving & (r != leave), self.local + a * square + r * self.routers + leave),
            (far, self.globe + a * self.groups + b),
            (far & (enter != s), self.local + b * square + enter * self.routers + s),
        ]
        messages = [np.flatnonzero(mask) for mask, _ in parts]
        links = [link[which] for which, (_, link) in zip(messages, parts)]
        return Routes(np.concatenate(messages), np.concatenate(links), len(sources))

    def link_name(self, link: int) -> str:
        """Words for one link."""
        link = int(link)
        if link < self.local:
            return f"out of {link}" if link < self.ranks else f"into {link - self.ranks}"
        if link < self.globe:
            group, pair = divmod(link - self.local, self.routers * self.routers)
            return f"group {group}: router {pair // self.routers} to {pair % self.routers}"
        pair = link - self.globe
        return f"group {pair // self.groups} to group {pair % self.groups}"

    def ends(self, link: int) -> tuple[TopologyPlace, TopologyPlace]:
        """A rank and its router, two routers of a group, or the routers that connect two groups."""
        link = int(link)
        if link < self.local:
            rank = TopologyPlace(0, link % self.ranks)
            router = TopologyPlace(1, rank.number // self.hosts)
            return (rank, router) if link < self.ranks else (router, rank)
        if link < self.globe:
            group, pair = divmod(link - self.local, self.routers * self.routers)
            first = group * self.routers
            return TopologyPlace(1, first + pair // self.routers), TopologyPlace(
                1, first + pair % self.routers
            )
        a, b = np.divmod(np.array([link - self.globe]), self.groups)
        leave, enter = a * self.routers + self._gateway(a, b), b * self.routers + self._gateway(b, a)
        return TopologyPlace(1, int(leave[0])), TopologyPlace(1, int(enter[0]))
