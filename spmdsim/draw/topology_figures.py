"""Figures of topologies: ranks, switches and links where a person would draw them, and how far any two ranks are apart."""

from __future__ import annotations

from collections import Counter
from math import cos, pi, sin
from typing import TYPE_CHECKING

import numpy as np

from spmdsim.cost.topologies import Dragonfly, Torus
from spmdsim.cost.topology import Topology, TopologyPlace
from spmdsim.draw.canvas import Canvas, ink_of, width_of
from spmdsim.draw.figures import Figure, Part, fact_rows

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_RANKS = 80
"""Of larger networks no links are drawn: what is told apart by its number alone needs room for it."""
MOST_PAIRS = 24
DARKEST = 0.6  # letters are read on it, on a light and on a dark ground
HIGH = 18

Point = tuple[float, float]


def topology_figure(topology: Topology) -> Figure:
    """Ranks, switches and links; and how many links are between any two of the first ranks."""
    distances, most = _distances(topology)
    rows = (
        ("ranks", f"{topology.ranks:,}"),
        ("links, each in one direction", f"{len(topology.capacity):,}"),
        ("most links between two ranks drawn", str(most)),
        ("bytes per second of a link", " or ".join(f"{c:.4g}" for c in np.unique(topology.capacity))),
        ("software, per message", f"{topology.alpha:.3g} s"),
        ("each link beyond the first", f"{topology.hop_seconds:.3g} s"),
    )
    places = positions(topology) if topology.ranks <= MOST_RANKS else None
    drawn: tuple[Part, ...] = () if places is None else (_network(topology, places),)
    note = "filled boxes are ranks, open ones switches; a line is a link in both directions"
    if places is None:
        note = f"links of at most {MOST_RANKS} ranks in at most three dims are drawn"
    return Figure(f"topology {topology.name}", (*drawn, distances, fact_rows(rows)), (note,))


def positions(topology: Topology) -> dict[TopologyPlace, Point] | None:
    """Where ranks and switches are drawn, at the least 0; None for a torus of more than three dims.

    >>> from spmdsim.cost.topology import Flat
    >>> list(positions(Flat(2, 1e9)).values())
    [(0.0, 80.0), (34.0, 80.0), (17.0, 0.0)]
    """
    if isinstance(topology, Torus):
        points = _of_torus(topology)
    elif isinstance(topology, Dragonfly):
        points = _of_dragonfly(topology)
    else:
        points = _of_tiers(topology)
    if points is None:
        return None
    left, upper = (min(point[k] for point in points.values()) for k in (0, 1))
    return {place: (round(x - left, 1), round(y - upper, 1)) for place, (x, y) in points.items()}


def _of_torus(torus: Torus) -> dict[TopologyPlace, Point] | None:
    """One dim: a circle; two: a grid; three: grids behind each other."""
    if len(torus.dims) == 1:
        count, radius = torus.ranks, 22 * max(torus.ranks, 4) / pi
        return {TopologyPlace(0, k): _around((0, 0), radius, k, count) for k in range(count)}
    if len(torus.dims) > 3:
        return None
    layers, rows, columns = (1, *torus.dims)[-3:]
    wide, high = 34 * layers + 26, 30 * layers + 20
    every = ((a, b, c) for a in range(layers) for b in range(rows) for c in range(columns))
    return {TopologyPlace(0, k): (c * wide + 32 * a, b * high - 26 * a) for k, (a, b, c) in enumerate(every)}


def _around(centre: Point, radius: float, index: float, count: int) -> Point:
    angle = 2 * pi * index / count - pi / 2
    return centre[0] + radius * cos(angle), centre[1] + radius * sin(angle)


def _of_dragonfly(fly: Dragonfly) -> dict[TopologyPlace, Point]:
    """Groups in a circle, their routers in small circles, ranks outside of their routers."""
    points: dict[TopologyPlace, Point] = {}
    inner = 14.0 + 7 * fly.routers
    outer = inner + 34 + 3 * fly.hosts
    apart = (outer + 16) / sin(pi / max(fly.groups, 2))  # circles of neighbours do not touch
    centres = [_around((0, 0), apart, k, fly.groups) for k in range(fly.groups)]
    for router in range(fly.groups * fly.routers):
        group, place = divmod(router, fly.routers)
        centre = centres[group] if fly.groups > 1 else (0.0, 0.0)
        turned = place + 0.5 + fly.routers * group / fly.groups
        points[TopologyPlace(1, router)] = _around(centre, inner, turned, fly.routers)
        for host in range(fly.hosts):
            aside = turned + (host - (fly.hosts - 1) / 2) * 0.8 / fly.hosts
            points[TopologyPlace(0, router * fly.hosts + host)] = _around(centre, outer, aside, fly.routers)
    return points


def _of_tiers(topology: Topology) -> dict[TopologyPlace, Point]:
    """Ranks below, what they are connected by above, each tier as wide as the ranks."""
    there = {place for link in range(len(topology.capacity)) for place in topology.ends(link)}
    tiers = Counter(place.tier for place in there)
    pitch, high = 34.0, max(tiers)

    def across(place: TopologyPlace) -> float:
        return ((place.number + 0.5) / tiers[place.tier] * tiers[0] - 0.5) * pitch

    return {place: (across(place), 80.0 * (high - place.tier)) for place in sorted(there)}


def _network(topology: Topology, places: Mapping[TopologyPlace, Point]) -> Canvas:
    out = Canvas()
    margin, top = 30.0, 24.0
    fastest = float(topology.capacity.max())
    links: dict[tuple[TopologyPlace, TopologyPlace], list[int]] = {}
    for link in range(len(topology.capacity)):
        a, b = topology.ends(link)
        if a != b and a in places and b in places:
            links.setdefault((min(a, b), max(a, b)), []).append(link)
    for (a, b), both in links.items():
        capacity = float(topology.capacity[both[0]])
        ink = _ink(topology, both[0])
        told = f"{a} - {b}: {', '.join(map(topology.link_name, both))}; {capacity:.4g} bytes/s each"
        (x1, y1), (x2, y2) = places[a], places[b]
        style = f' style="stroke:{ink};stroke-width:{1 + capacity / fastest:.1f}"'
        bend = 20.0 if isinstance(topology, Torus) and _goes_around(topology, a, b) else 0.0
        out.line(x1 + margin, y1 + top, x2 + margin, y2 + top, "edge", style, told, bend)
    for place, (x, y) in places.items():
        words = str(place.number) if place.tier == 0 else ""
        wide, high = (max(width_of(words) + 8, 22), HIGH) if words else (14, 14)
        box = (x + margin - wide / 2, y + top - high / 2, wide, high)
        out.cell(*box, [words] if words else [], None if place.tier else 0, str(place))
    out.reach(out.width + 20, out.height + 14)
    return out


def _ink(topology: Topology, link: int) -> str:
    """A torus has a colour for each dim; a dragonfly one inside of groups and one between them."""
    if isinstance(topology, Torus):
        return ink_of(link // (2 * topology.ranks))
    if isinstance(topology, Dragonfly) and link >= topology.local:
        return ink_of(0 if link < topology.globe else 1)
    return "var(--faint)"


def _goes_around(torus: Torus, a: TopologyPlace, b: TopologyPlace) -> bool:
    """Whether a link closes a ring of a torus that is drawn as a line."""
    if len(torus.dims) == 1:
        return False
    return any(
        size > 2 and abs(a.number // stride % size - b.number // stride % size) == size - 1
        for size, stride in zip(torus.dims, torus.strides)
    )


def _distances(topology: Topology) -> tuple[Canvas, int]:
    """Links between any two of the first ranks, and the most of them."""
    count = min(topology.ranks, MOST_PAIRS)
    ranks = np.arange(count)
    hops = topology.hops(np.repeat(ranks, count), np.tile(ranks, count)).reshape(count, count)
    out, most = Canvas(), max(1, int(hops.max(initial=0)))
    of = f" (of the first {count})" if count < topology.ranks else ""
    out.text(0, 12, f"links between two ranks{of}", "faint")
    for a in range(count):
        out.text(30 + a * 22 + 11, 30, str(a), "faint", "middle")
        out.text(24, 36 + a * 20 + 14, str(a), "faint", "end")
        for b in range(count):
            far, box = int(hops[a, b]), (30.0 + b * 22, 36.0 + a * 20, 22, 20)
            told = f"rank {a} to rank {b}: {far} links"
            out.cell(*box, [str(far) if far else "·"], None, told, far / most * DARKEST)
    return out, most
