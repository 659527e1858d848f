"""Draw machines, predictions and topologies as tables of text, plots and figures.

The first half is about times over sizes and rank counts. The second half draws the ranks, switches and links of a
topology.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import cos, pi, sin
from typing import TYPE_CHECKING

import numpy as np

from spmdsim.cost.node_map import NodeMap, format_ranks
from spmdsim.cost.prediction import Crossover, PredictedPoint, Prediction
from spmdsim.cost.topologies import Dragonfly, Torus
from spmdsim.cost.topology import Topology, TopologyPlace
from spmdsim.errors import many
from spmdsim.figures.canvas import Canvas, ink_of, width_of
from spmdsim.figures.figures import Figure, Part, fact_rows
from spmdsim.figures.plot import TIME, Line, Plot, plot_canvas
from spmdsim.redistribution.plans.plan_table import bytes_text
from spmdsim.tables import Table

if TYPE_CHECKING:
    from spmdsim.cost.machine import Machine


MOST_COLUMNS = 10
"""Largest number of points in the table of a figure."""


def size_words(nbytes: float) -> str:
    """Return a size with the unit that users type; a number of bytes if no unit divides it.

    >>> [size_words(v) for v in (100, 2048, 3 << 20, 1500)]
    ['100', '2K', '3M', '1500']
    """
    for power, unit in ((30, "G"), (20, "M"), (10, "K")):
        if nbytes >= 1 << power and nbytes % (1 << power) == 0:
            return f"{int(nbytes) >> power}{unit}"
    return f"{nbytes:.0f}"


def microseconds(seconds: float) -> str:
    """Return seconds in microseconds: three digits, or from 100 on whole numbers.

    >>> microseconds(1.23456e-6), microseconds(0.0123456)
    ('1.23', '12,346')
    """
    value = seconds * 1e6
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def prediction_tables(prediction: Prediction) -> list[Table]:
    """Return tables of predicted times in microseconds, with a row per algorithm.

    * If the prediction has one message size: one table, with a column per rank count.
    * Otherwise: a table per rank count, with a column per size.

    Below the algorithms, the row "(bound)" has the lower bound, and "(plans)" the price that plans use. "*" marks the
    fastest algorithm of a column, and "-" an algorithm without a price.

    Args:
        prediction: the prediction, with at least one point (a rank count with a size).
    """
    over_ranks = len({point.nbytes for point in prediction.points}) == 1
    # The points of each table, by rank count; the only table over rank counts has the key 0.
    table_points: dict[int, list[PredictedPoint]] = {}
    for point in prediction.points:
        table_points.setdefault(0 if over_ranks else point.ranks, []).append(point)
    tables = []
    for ranks, points in table_points.items():
        size = points[0].nbytes
        title = many(size, "byte", written=size_words(size)) if over_ranks else many(ranks, "rank")
        heads = [str(p.ranks) if over_ranks else size_words(p.nbytes) for p in points]
        rows = [[name, *(_time_cell(p, name) for p in points)] for name in prediction.algorithms]
        # The space stands where other rows may have "*".
        rows.append(["(bound)", *[microseconds(p.bound) + " " for p in points]])
        rows.append(["(plans)", *(microseconds(p.plans) + " " for p in points)])
        right = range(1, len(heads) + 1)
        title += ": microseconds, * is the fastest"
        tables.append(Table(["ranks" if over_ranks else "size", *heads], rows, title, right))
    return tables


def _time_cell(point: PredictedPoint, name: str) -> str:
    """Return the microseconds of an algorithm at a point, such as "12.3*" for the fastest one.

    Other times end with a blank, so that digits are aligned. Return "- " if the algorithm has no price at the point.
    """
    if name not in point.seconds:
        return "- "
    return microseconds(point.seconds[name]) + ("*" if name == point.best else " ")


def crossover_words(crossover: Crossover) -> str:
    """Return a sentence about the size from which another algorithm is fastest.

    An example is "on 8 ranks: ring is faster than recursive_doubling from 29.64 KiB on".
    """
    return f"on {many(crossover.ranks, 'rank')}: {crossover.after} is faster than {crossover.before} from {bytes_text(crossover.nbytes)} on"


def topology_words(prediction: Prediction) -> list[str]:
    """Return a remark that the row "(plans)" knows no topology, if the prediction has one, else []."""
    if not prediction.topology:
        return []
    return ["(plans): plans and searches know the machine's nodes, but assume no topology"]


def measured_words(prediction: Prediction) -> list[str]:
    """Return a remark if the library's own call is predicted beyond its measured sizes, else [].

    A machine file has measured times of the library's own call ("native") up to some size. Predicted times beyond it
    are a guess. The remark names the largest size that was measured on one of the prediction's rank counts. For
    example, if 1 MiB was measured and 4 MiB are predicted, the list has one remark about 1 MiB. If nothing was
    measured, the result is [].

    Args:
        prediction: the prediction, whose points may have the library's own call as "native".
    """
    native_points = [point for point in prediction.points if "native" in point.seconds]
    ranks = {point.ranks for point in native_points}
    measured_sizes = [
        point.nbytes
        for point in prediction.machine.measured
        if (point.collective, point.algorithm) == (prediction.collective, "native")
        and point.group_size in ranks
    ]
    largest_size = max(measured_sizes, default=0)
    if not largest_size or all(point.nbytes <= largest_size for point in native_points):
        return []
    return [f"native was measured up to {bytes_text(largest_size)}: beyond, its times are a guess"]


def prediction_plot(prediction: Prediction, most: int | None = None) -> Plot:
    """Return a plot of predicted times with a line per algorithm.

    * Several rank counts: the horizontal axis has rank counts. If there are several sizes, too, each algorithm has a
      line per size, named such as "ring 1 KiB".
    * One rank count: the horizontal axis has sizes. Vertical lines mark crossovers, the sizes at which the fastest
      algorithm changes.

    Points at size 0 or without a time are left out.

    Args:
        prediction: the prediction.
        most: number of lines to draw, those of the fastest algorithms; None for all. More are drawn if more than
            ``most`` lines are the fastest at some point. The plot also has the names of the lines that are not drawn.
    """
    over_ranks = len({point.ranks for point in prediction.points}) > 1
    has_sizes = over_ranks and len({point.nbytes for point in prediction.points}) > 1
    lines: dict[str, list[tuple[float, float]]] = {}
    for point in prediction.points:
        for name, seconds in point.seconds.items():
            x = point.ranks if over_ranks else point.nbytes
            label = f"{name} {size_words(point.nbytes)}" if has_sizes else name
            if x > 0 and seconds > 0:
                lines.setdefault(label, []).append((float(x), seconds))
    drawn_names = _choose_lines(lines, most)
    title = f"{prediction.collective} on {prediction.machine.name}"
    title += f", {prediction.topology}" if prediction.topology else ""
    if not over_ranks:
        title += f", {many(prediction.points[0].ranks, 'rank')}"
    marks = () if over_ranks else tuple((x.nbytes, f"{x.before} -> {x.after}") for x in prediction.crossovers)
    return Plot(
        title,
        "ranks" if over_ranks else "bytes",
        TIME,
        tuple(Line(name, tuple(lines[name])) for name in drawn_names),
        marks,
        tuple(name for name in lines if name not in drawn_names),
    )


def _choose_lines(lines: Mapping[str, Sequence[tuple[float, float]]], most: int | None) -> list[str]:
    """Return the names of the lines to draw: first the lines that are fastest at some point, then others.

    Lines of both groups are ordered by their least seconds at any point.
    """
    fastest_at: dict[float, tuple[float, str]] = {}
    for name, points in lines.items():
        for x, seconds in points:
            fastest_at[x] = min(fastest_at.get(x, (seconds, name)), (seconds, name))
    winners = {name for _, name in fastest_at.values()}
    least_seconds = {name: min(seconds for _, seconds in points) for name, points in lines.items()}
    order = sorted(lines, key=lambda name: (name not in winners, least_seconds[name]))
    return order if most is None else order[: max(most, len(winners))]


SIZES = tuple(4.0**k for k in range(2, 13))


def machine_figure(machine: Machine) -> Figure:
    """Draw a machine's times over message sizes, and a table of its numbers.

    The plot has the time of one message, and of all_reduce, all_gather and all_to_all on 8 ranks, for 16 bytes to 16
    MiB. The table has latency, bandwidth and the machine's other constants. A note says how certain predictions of the
    machine are.

    Args:
        machine: the machine.
    """
    lines = [Line("one message", tuple((size, machine.message_seconds(size)) for size in SIZES))]
    for name in ("all_reduce", "all_gather", "all_to_all"):
        points = tuple((size, machine.seconds(name, 8, int(size))) for size in SIZES)
        lines.append(Line(f"{name}, 8 ranks", tuple((x, y) for x, y in points if y > 0)))
    plot = Plot(f"messages and collectives on {machine.name}", "bytes", TIME, tuple(lines))
    speed = f" ({1 / machine.beta / 1e9:.3g} GB/s)" if machine.beta else ""
    rows = [
        ("alpha", f"{machine.alpha:.3g} s for a message"),
        ("beta", f"{machine.beta:.3g} s for a byte{speed}" if machine.beta else "0"),
        ("gamma", f"{machine.gamma:.3g} s to reduce a byte"),
        ("flops", f"{machine.flops:.3g} per second and rank"),
        ("beta_memory", f"{machine.beta_memory:.3g} s to copy a byte"),
        *_processor_rows(machine),
        ("ranks per node", str(machine.ranks_per_node or "one level only")),
        ("memory of a rank", bytes_text(machine.memory_bytes) if machine.memory_bytes else "not given"),
        ("measured times", f"{len(machine.measured):,}"),
    ]
    links = [] if machine.intra is None else [("inside a node", machine.intra)]
    links += [(f"axis {axis}", link) for axis, link in machine.axis_links]
    rows += [(name, f"alpha {link.alpha:.3g} s, beta {link.beta:.3g} s/B") for name, link in links]
    parts = (plot_canvas(plot), fact_rows(rows, "number"))
    return Figure(f"machine {machine.name}", parts, (machine.certainty,))


def _processor_rows(machine: Machine) -> list[tuple[str, str]]:
    """Return name and text of the LogGOPS numbers that a machine has."""
    rows = [
        ("overhead", f"{machine.overhead:.3g} s of each processor for a message"),
        ("overhead_per_byte", f"{machine.overhead_per_byte:.3g} s of each processor for a byte"),
        ("eager_bytes", bytes_text(machine.eager_bytes)),
    ]
    return [(name, text) for name, text in rows if getattr(machine, name)]


def node_map_figure(nodes: NodeMap) -> Figure:
    """Return the table of nodes: the host, the number of ranks and the ranks of each."""
    rows = [
        (host, f"{nodes.sizes[node]:,}", format_ranks(nodes.ranks_of(node)))
        for node, host in enumerate(nodes.hosts)
    ]
    table = Table(("node", "number of ranks", "ranks"), tuple(rows))
    return Figure(f"{many(nodes.size, 'rank')} on {many(nodes.count, 'node')}", (table,))


def prediction_figure(prediction: Prediction) -> Figure:
    """Draw a prediction: at most 8 lines of times over sizes or rank counts, and tables.

    If more algorithms are fastest at some point, all of these are drawn. A single point has no plot. The tables have
    the first :data:`MOST_COLUMNS` (10) points. Notes name what is not drawn, measured sizes that the prediction exceeds,
    and the algorithms without a price.
    """
    plot = prediction_plot(prediction, 8)
    plots = (plot_canvas(plot),) if len(prediction.points) > 1 else ()
    notes = [plot.undrawn_words] if plots and plot.undrawn else []
    table_prediction = replace(prediction, points=prediction.points[:MOST_COLUMNS])
    if len(prediction.points) > MOST_COLUMNS:
        notes.append(f"the table has the first {MOST_COLUMNS} of {len(prediction.points)} points")
    notes += [*topology_words(prediction), *measured_words(prediction)]
    notes += [f"left out: {name}: {why}" for name, why in prediction.left_out.items()]
    return Figure(plot.title, (*plots, *prediction_tables(table_prediction)), tuple(notes))


# ---------------------------------------------------------------- topologies: ranks, switches and links


MOST_RANKS = 80
"""Largest number of ranks of a network whose links are drawn, because each rank needs its number."""
MOST_PAIRS = 24
"""Largest number of ranks in the table of distances."""
DARKEST = 0.4
"""Opacity of the largest distance; letters stay readable on light and dark backgrounds."""
HIGH = 18

Point = tuple[float, float]


def topology_figure(topology: Topology) -> Figure:
    """Draw a topology's ranks, switches and links, and a table of distances.

    The network is drawn if it has at most :data:`MOST_RANKS` ranks and is no torus of more than three dimensions. The
    table has the number of links between each two of the first :data:`MOST_PAIRS` (24) ranks.
    """
    distances, largest_distance = _draw_distances(topology)
    rows = (
        ("ranks", f"{topology.ranks:,}"),
        ("links, each in one direction", f"{len(topology.capacity):,}"),
        ("most links between two ranks drawn", str(largest_distance)),
        ("bytes per second of a link", " or ".join(f"{c:.4g}" for c in np.unique(topology.capacity))),
        ("software, per message", f"{topology.alpha:.3g} s"),
        ("each link beyond the first", f"{topology.hop_seconds:.3g} s"),
    )
    places = positions(topology) if topology.ranks <= MOST_RANKS else None
    network_parts: tuple[Part, ...] = () if places is None else (_draw_network(topology, places),)
    switches = ", grey ones switches" if places and any(location.tier for location in places) else ""
    note = f"numbered boxes are ranks{switches}; a line is a link in both directions"
    if places is None:
        note = f"links of at most {MOST_RANKS} ranks in at most three dims are drawn"
    return Figure(f"topology {topology.name}", (*network_parts, distances, fact_rows(rows)), (note,))


def positions(topology: Topology) -> dict[TopologyPlace, Point] | None:
    """Return the positions of ranks and switches in pixels, all at least 0.

    A position is a pair ``(x, y)``, y downwards, for the centre of a rank or switch. Keys are places: tier 0 has the
    ranks, higher tiers have switches. Return None for a torus of more than three dimensions, which cannot be drawn.

    >>> from spmdsim.cost.topology import Flat
    >>> list(positions(Flat(2, 1e9)).values())
    [(0.0, 80.0), (34.0, 80.0), (17.0, 0.0)]
    """
    if isinstance(topology, Torus):
        points = _place_torus(topology)
    elif isinstance(topology, Dragonfly):
        points = _place_dragonfly(topology)
    else:
        points = _place_tiers(topology)
    if points is None:
        return None
    left, upper = (min(point[k] for point in points.values()) for k in (0, 1))
    return {location: (round(x - left, 1), round(y - upper, 1)) for location, (x, y) in points.items()}


def _place_torus(torus: Torus) -> dict[TopologyPlace, Point] | None:
    """Return the positions of a torus's ranks in pixels; None for more than three dimensions.

    * One dimension: a circle around (0, 0), so coordinates can be negative.
    * Two dimensions: a grid.
    * Three dimensions: grids behind each other, each further to the upper right.

    Keys are ``TopologyPlace(0, rank)``.
    """
    if len(torus.dims) == 1:
        count, radius = torus.ranks, 22 * max(torus.ranks, 4) / pi
        return {TopologyPlace(0, k): _point_on_circle((0, 0), radius, k, count) for k in range(count)}
    if len(torus.dims) > 3:
        return None
    layers, rows, columns = (1, *torus.dims)[-3:]
    column_width, row_height = 34 * layers + 26, 30 * layers + 20
    all_coords = itertools.product(range(layers), range(rows), range(columns))
    # Each layer is drawn behind the one before, to the right and higher.
    return {
        TopologyPlace(0, rank): (column * column_width + 32 * layer, row * row_height - 26 * layer)
        for rank, (layer, row, column) in enumerate(all_coords)
    }


def _point_on_circle(centre: Point, radius: float, index: float, count: int) -> Point:
    """Return point ``index`` of ``count`` points on a circle; point 0 is at the top."""
    angle = 2 * pi * index / count - pi / 2
    return centre[0] + radius * cos(angle), centre[1] + radius * sin(angle)


def _place_dragonfly(fly: Dragonfly) -> dict[TopologyPlace, Point]:
    """Return the positions of a dragonfly's routers and ranks, in pixels around (0, 0).

    The groups are on a circle, the routers of a group on a small circle, and the ranks outside of their routers. A
    single group is in the middle. Circles are large enough that neighbours do not touch.

    Args:
        fly: the dragonfly topology.

    Returns:
        A point for each ``TopologyPlace(0, rank)`` and each ``TopologyPlace(1, router)``.
    """
    points: dict[TopologyPlace, Point] = {}
    inner = 14.0 + 7 * fly.routers
    outer = inner + 34 + 3 * fly.hosts
    distance = (outer + 16) / sin(pi / max(fly.groups, 2))  # so that circles of neighbours do not touch
    centres = [_point_on_circle((0, 0), distance, k, fly.groups) for k in range(fly.groups)]
    for router in range(fly.groups * fly.routers):
        group, position = divmod(router, fly.routers)
        centre = centres[group] if fly.groups > 1 else (0.0, 0.0)
        # Turn the routers of each group with the group's own place on the circle.
        turned = position + 0.5 + fly.routers * group / fly.groups
        points[TopologyPlace(1, router)] = _point_on_circle(centre, inner, turned, fly.routers)
        for host in range(fly.hosts):
            # The ranks of a router fill 0.8 of the angle between two routers.
            aside = turned + (host - (fly.hosts - 1) / 2) * 0.8 / fly.hosts
            points[TopologyPlace(0, router * fly.hosts + host)] = _point_on_circle(
                centre, outer, aside, fly.routers
            )
    return points


def _place_tiers(topology: Topology) -> dict[TopologyPlace, Point]:
    """Return positions in pixels with ranks at the bottom and each tier of switches above.

    Each tier is as wide as the ranks. Only places at the end of a link of ``topology`` have a position. Tiers are 80
    pixels apart, ranks 34.
    """
    all_places = {location for link in range(len(topology.capacity)) for location in topology.ends(link)}
    tiers = Counter(location.tier for location in all_places)
    pitch, top_tier = 34.0, max(tiers)

    def x_of(location: TopologyPlace) -> float:
        return ((location.number + 0.5) / tiers[location.tier] * tiers[0] - 0.5) * pitch

    return {location: (x_of(location), 80.0 * (top_tier - location.tier)) for location in sorted(all_places)}


def _draw_network(topology: Topology, places: Mapping[TopologyPlace, Point]) -> Canvas:
    """Draw links as lines, ranks as filled boxes with numbers, and switches as grey boxes.

    * Links that connect one pair of places are drawn as one line, with the colour and width of the first of them.
    * The width in pixels is 1 + capacity / largest capacity: 2 for the fastest links, 1.5 for links of half the
      capacity.
    * A line that closes a ring of a torus is bent, so that it does not cover the others.
    * A link from a place to itself is not drawn.
    * A pointer shows the names of the links and their bytes per second.

    Args:
        topology: the topology, with at least one link. A link with an end that is not in ``places`` is not drawn.
        places: the centre of each rank and switch, in pixels. The drawing adds 30 at the left and 24 at the top.
    """
    out = Canvas()
    margin, top = 30.0, 24.0
    largest_capacity = float(topology.capacity.max())
    links: dict[tuple[TopologyPlace, TopologyPlace], list[int]] = {}
    for link in range(len(topology.capacity)):
        a, b = topology.ends(link)
        if a != b and a in places and b in places:
            links.setdefault((min(a, b), max(a, b)), []).append(link)
    for (a, b), links_of_pair in links.items():
        capacity = float(topology.capacity[links_of_pair[0]])
        colour = _link_colour(topology, links_of_pair[0])
        pointer_text = (
            f"{a} - {b}: {', '.join(map(topology.link_name, links_of_pair))}; {capacity:.4g} bytes/s each"
        )
        (x1, y1), (x2, y2) = places[a], places[b]
        style = f' style="stroke:{colour};stroke-width:{1 + capacity / largest_capacity:.1f}"'
        bend = 20.0 if isinstance(topology, Torus) and _closes_ring(topology, a, b) else 0.0
        out.line(x1 + margin, y1 + top, x2 + margin, y2 + top, "edge", style, pointer_text, bend)
    for location, (x, y) in places.items():
        words = str(location.number) if location.tier == 0 else ""  # Tier 0 has the ranks.
        width, height = (max(width_of(words) + 8, 22), HIGH) if words else (14, 14)
        box = (x + margin - width / 2, y + top - height / 2, width, height)
        fill, shade = (None, DARKEST) if location.tier else (0, 0.0)
        out.cell(*box, [words] if words else [], fill, str(location), shade)
    out.reach(out.width + 20, out.height + 14)
    return out


def _link_colour(topology: Topology, link: int) -> str:
    """Return the colour of a link, as CSS.

    In a torus the colour depends on the link's dimension, and in a dragonfly on its kind, local or global. All other
    links are faint, also the links between ranks and routers. ``link`` is the link's number in ``topology``.
    """
    if isinstance(topology, Torus):
        return ink_of(link // (2 * topology.ranks))
    if isinstance(topology, Dragonfly) and link >= topology.first_local:
        return ink_of(0 if link < topology.first_global else 1)
    return "var(--faint)"


def _closes_ring(torus: Torus, a: TopologyPlace, b: TopologyPlace) -> bool:
    """Return True if a link connects the two ends of a row or column of a torus, to be bent.

    Return False for a torus of one dimension, which is drawn as a circle, and for dimensions of size 2.
    """
    if len(torus.dims) == 1:
        return False
    return any(
        size > 2 and abs(a.number // stride % size - b.number // stride % size) == size - 1
        for size, stride in zip(torus.dims, torus.strides)
    )


def _draw_distances(topology: Topology) -> tuple[Canvas, int]:
    """Draw a table of the number of links between each two of the first ranks.

    It has the first :data:`MOST_PAIRS` (24) ranks of ``topology``. Larger numbers have darker cells; a rank and itself
    have "·".

    Returns:
        The drawing, and the largest number of links in it (at least 1).
    """
    count = min(topology.ranks, MOST_PAIRS)
    ranks = np.arange(count)
    hops = topology.hops(np.repeat(ranks, count), np.tile(ranks, count)).reshape(count, count)
    out, largest_distance = Canvas(), max(1, int(hops.max(initial=0)))
    remark = f" (of the first {count})" if count < topology.ranks else ""
    out.text(0, 12, f"links between two ranks{remark}", "faint")
    for a in range(count):
        out.text(30 + a * 22 + 11, 30, str(a), "faint", "middle")
        out.text(24, 36 + a * 20 + 14, str(a), "faint", "end")
        for b in range(count):
            distance, box = int(hops[a, b]), (30.0 + b * 22, 36.0 + a * 20, 22, 20)
            pointer_text = f"rank {a} to rank {b}: {many(distance, 'link')}"
            out.cell(
                *box,
                [str(distance) if distance else "·"],
                None,
                pointer_text,
                distance / largest_distance * DARKEST,
            )
    return out, largest_distance
