"""Networks from files with links between ranks and switches.

A file is one JSON object. Whole numbers from 0 on are ranks, texts are switches::

    {"links": [[0, "left"], [1, "left"], ["left", "right", 0.5], ["right", 2], ["right", 3]]}

A third entry is the speed of a link as a multiple of the machine's; the default is 1. Each link carries messages in both
directions at once. ``"one_way"`` has links from the first end to the second one only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from spmdsim.cost.topology import Ints, Routes, Topology, TopologyPlace
from spmdsim.errors import InputError
from spmdsim.reading import read_json, readable

#: One directed link: its two ends, as ranks and names of switches, and its speed.
Wire = tuple["int | str", "int | str", float]
#: Most ranks and switches of a file; routes are a table with a row and a column for each.
MOST_PLACES = 2048


class LinkNetwork(Topology):
    """A network of any links. A message takes the fewest links; of equally short routes, the one whose links stand first.

    Args:
        name: shown in tables.
        wires: the directed links, with speeds in bytes per second. Ranks are 0, 1, ... without gaps.
        alpha: seconds per message, spent by the software.
        hop_seconds: seconds per link beyond the first.

    Raises:
        InputError: If rank numbers have a gap, there are more than :data:`MOST_PLACES` (2,048) ranks and switches, or a
            rank cannot reach another one.

    >>> wires = [(0, "s", 1.0), ("s", 1, 1.0), (1, "s", 1.0), ("s", 0, 1.0)]
    >>> network = LinkNetwork("pair", wires, 0.0, 0.0)
    >>> network.ranks, network.link_name(0), network.routes(np.array([0]), np.array([1])).links.tolist()
    (2, 'rank 0 to switch s', [0, 1])
    """

    def __init__(self, name: str, wires: Sequence[Wire], alpha: float, hop_seconds: float) -> None:
        ends = {end for wire in wires for end in wire[:2]}
        ranks = sorted(end for end in ends if isinstance(end, int))
        self._switches = sorted(end for end in ends if isinstance(end, str))
        if ranks != list(range(len(ranks))) or not ranks:
            missing = next(number for number in range(len(ranks) + 1) if number not in ends)
            raise InputError(f"its links must name ranks from 0 on without gaps, rank {missing} is missing")
        if len(ends) > MOST_PLACES:
            raise InputError(f"it must have at most {MOST_PLACES:,} ranks and switches, got {len(ends):,}")
        numbers = {end: index for index, end in enumerate([*ranks, *self._switches])}
        self.name, self.ranks, self.alpha, self.hop_seconds = name, len(ranks), alpha, hop_seconds
        self._sources = np.array([numbers[source] for source, _, _ in wires])
        self._targets = np.array([numbers[target] for _, target, _ in wires])
        self.capacity = np.array([speed for _, _, speed in wires])
        self._next_link = self._find_routes(len(ends))
        unreachable = np.argwhere(self._next_link[: self.ranks, : self.ranks] < 0)
        if len(cut := unreachable[unreachable[:, 0] != unreachable[:, 1]]):
            raise InputError(
                f"no links lead from rank {cut[0][0]} to rank {cut[0][1]}; add links between them"
            )

    def _find_routes(self, places: int) -> Ints:
        """Return the link from each rank or switch towards each other one, as ``[from, to]``.

        It is -1 if no links lead there.

        Args:
            places: number of ranks and switches.
        """
        links_into: list[list[int]] = [[] for _ in range(places)]
        for link, target in enumerate(self._targets):
            links_into[target].append(link)
        following = np.full((places, places), -1)
        for goal in range(places):
            reached, queue = {goal}, deque([goal])
            while queue:
                for link in links_into[queue.popleft()]:
                    if (neighbour := int(self._sources[link])) not in reached:
                        reached.add(neighbour)
                        following[neighbour, goal] = link
                        queue.append(neighbour)
        return following

    def routes(self, sources: Ints, targets: Ints) -> Routes:
        """Return the links of each message from ``sources[i]`` to ``targets[i]``."""
        messages, links, places = [], [], np.array(sources)
        while len(moving := np.flatnonzero(places != targets)):
            hops = self._next_link[places[moving], np.asarray(targets)[moving]]
            messages.append(moving)
            links.append(hops)
            places[moving] = self._targets[hops]
        no_links = np.zeros(0, np.int64)
        return Routes(np.concatenate([*messages, no_links]), np.concatenate([*links, no_links]), len(sources))

    def _name_of(self, number: int) -> str:
        return f"rank {number}" if number < self.ranks else f"switch {self._switches[number - self.ranks]}"

    def link_name(self, link: int) -> str:
        """Return the name of a link, such as "rank 0 to switch left"."""
        return f"{self._name_of(self._sources[link])} to {self._name_of(self._targets[link])}"

    def ends(self, link: int) -> tuple[TopologyPlace, TopologyPlace]:
        """Return the two ends of a link; all switches are in tier 1, numbered by their sorted names."""
        return self._place(int(self._sources[link])), self._place(int(self._targets[link]))

    def _place(self, number: int) -> TopologyPlace:
        return TopologyPlace(0, number) if number < self.ranks else TopologyPlace(1, number - self.ranks)


def read_network(path: str, bandwidth: float, alpha: float, hop_seconds: float) -> LinkNetwork:
    """Read a file of links.

    Args:
        path: the file.
        bandwidth: bytes per second of a link of speed 1.
        alpha: seconds per message, spent by the software.
        hop_seconds: seconds per link beyond the first.

    Raises:
        InputError: If the file is damaged, or its links join no network.
    """
    content = read_json(path, "a topology file")
    with readable(path, "a topology file"):
        if not isinstance(content, dict) or not {*content} <= {"links", "one_way"} or not content:
            raise InputError('it must be an object with "links" or "one_way"')
        if not all(isinstance(links, list) for links in content.values()):
            raise InputError('"links" and "one_way" must be lists of links')
        wires = []
        for entry in content.get("links", []):
            source, target, speed = _parse_link(entry)
            wires += [(source, target, speed * bandwidth), (target, source, speed * bandwidth)]
        for entry in content.get("one_way", []):
            source, target, speed = _parse_link(entry)
            wires.append((source, target, speed * bandwidth))
        return LinkNetwork(path, wires, alpha, hop_seconds)


def _parse_link(entry: Any) -> Wire:
    """Return the two ends and the speed of a link in a file; raise InputError if an entry is wrong."""
    if isinstance(entry, list) and len(entry) in (2, 3):
        source, target, speed = (*entry, 1)[:3]
        ends_are_right = all(
            isinstance(end, str) or (type(end) is int and end >= 0) for end in (source, target)
        )
        if ends_are_right and source != target and type(speed) in (int, float) and 0 < speed < np.inf:
            return source, target, float(speed)
    raise InputError(
        f"a link must be [rank or switch, another one, speed above 0 (optional)], got {str(entry)[:80]}"
    )
