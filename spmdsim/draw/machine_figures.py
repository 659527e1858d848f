"""Machines and predictions, as tables of text, plots and figures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from spmdsim.collectives.selection_tables import choose
from spmdsim.cost.prediction import Crossover, PredictedPoint, Prediction
from spmdsim.draw.figures import FactTable, Figure, fact_rows
from spmdsim.draw.plot import Line, Plot, plot_canvas, short
from spmdsim.errors import InputError
from spmdsim.redistribution.plan_table import bytes_text

if TYPE_CHECKING:
    from spmdsim.cost.machine import Machine
    from spmdsim.cost.prediction import Prediction

#: Points side by side in one table.
MOST_COLUMNS = 10


def size_words(nbytes: float) -> str:
    """A size in the units people type.

    >>> [size_words(v) for v in (100, 2048, 3 << 20, 1500)]
    ['100', '2K', '3M', '1500']
    """
    for power, unit in ((30, "G"), (20, "M"), (10, "K")):
        if nbytes >= 1 << power and nbytes % (1 << power) == 0:
            return f"{int(nbytes) >> power}{unit}"
    return f"{nbytes:.0f}"


def microseconds(seconds: float) -> str:
    """Seconds as microseconds with three significant digits or all whole ones.

    >>> microseconds(1.23456e-6), microseconds(0.0123456)
    ('1.23', '12,346')
    """
    value = seconds * 1e6
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def prediction_tables(
    prediction: Prediction, libraries: bool, width: int = 120
) -> Iterator[tuple[list[str], list[list[str]], str]]:
    """Columns, rows and title of each table: algorithms below one another, as many points side by side as fit."""
    over_ranks = len({point.nbytes for point in prediction.points}) == 1
    most = max(1, min(MOST_COLUMNS, (width - max(map(len, prediction.algorithms), default=0) - 2) // 10))
    blocks: dict[int, list[PredictedPoint]] = {}
    for point in prediction.points:
        blocks.setdefault(0 if over_ranks else point.ranks, []).append(point)
    for ranks, points in blocks.items():
        title = f"{size_words(points[0].nbytes)} bytes" if over_ranks else f"{ranks} ranks"
        for start in range(0, len(points), most):
            part = points[start : start + most]
            heads = [str(p.ranks) if over_ranks else size_words(p.nbytes) for p in part]
            rows = [[name, *(_cell(p, name) for p in part)] for name in prediction.algorithms]
            rows.append(["(bound)", *(microseconds(p.bound) + " " for p in part)])
            rows.append(["(plans)", *(microseconds(p.plans) + " " for p in part)])
            if libraries:
                for library, label in (("mpich", "MPICH takes"), ("openmpi", "Open MPI takes")):
                    rows.append([label, *(_choice(library, prediction.collective, p) for p in part)])
            yield ["ranks" if over_ranks else "size", *heads], rows, title


def _cell(point: PredictedPoint, name: str) -> str:
    if name not in point.seconds:
        return "- "
    return microseconds(point.seconds[name]) + ("*" if name == point.best else " ")


def _choice(library: str, collective: str, point: PredictedPoint) -> str:
    try:
        return choose(library, collective, point.ranks, point.nbytes).algorithm.name
    except InputError:
        return "-"


def crossover_words(one: Crossover) -> str:
    """One line about where the fastest algorithm changes."""
    return f"on {one.ranks} ranks: {one.after} is faster than {one.before} from {short(one.nbytes)}B on"


def prediction_plot(prediction: Prediction, most: int | None = None) -> Plot:
    """The prediction as lines over sizes, or over rank counts if there are several."""
    over_ranks = len({point.ranks for point in prediction.points}) > 1
    lines: dict[str, list[tuple[float, float]]] = {}
    for point in prediction.points:
        for name, seconds in point.seconds.items():
            x = point.ranks if over_ranks else point.nbytes
            several = over_ranks and len({p.nbytes for p in prediction.points}) > 1
            label = f"{name} {size_words(point.nbytes)}" if several else name
            if x > 0 and seconds > 0:
                lines.setdefault(label, []).append((float(x), seconds))
    fastest = sorted(lines, key=lambda name: min(y for _, y in lines[name]))[:most]
    where = f"{prediction.collective} on {prediction.machine.name}"
    where += f", {prediction.topology}" if prediction.topology else ""
    if not over_ranks:
        where += f", {prediction.points[0].ranks} ranks"
    marks = () if over_ranks else tuple((x.nbytes, f"{x.before} -> {x.after}") for x in prediction.crossovers)
    return Plot(
        where,
        "ranks" if over_ranks else "bytes",
        "seconds",
        tuple(Line(name, tuple(points)) for name, points in lines.items() if name in fastest),
        marks,
    )


SIZES = tuple(4.0**k for k in range(2, 13))


def machine_figure(machine: Machine) -> Figure:
    """What a machine's messages and collectives cost over their sizes, and its numbers."""
    lines = [Line("one message", tuple((size, machine.message_seconds(size)) for size in SIZES))]
    for name in ("all_reduce", "all_gather", "all_to_all"):
        points = tuple((size, machine.seconds(name, 8, int(size))) for size in SIZES)
        lines.append(Line(f"{name}, 8 ranks", tuple((x, y) for x, y in points if y > 0)))
    plot = Plot(f"messages and collectives on {machine.name}", "bytes", "seconds", tuple(lines))
    speed = f" ({1 / machine.beta / 1e9:.3g} GB/s)" if machine.beta else ""
    rows = [
        ("alpha", f"{machine.alpha:.3g} s for a message"),
        ("beta", f"{machine.beta:.3g} s for a byte{speed}" if machine.beta else "0"),
        ("gamma", f"{machine.gamma:.3g} s to reduce a byte"),
        ("flops", f"{machine.flops:.3g} per second and rank"),
        ("beta_memory", f"{machine.beta_memory:.3g} s to copy a byte"),
        ("ranks per node", str(machine.ranks_per_node or "one level only")),
        ("memory of a rank", bytes_text(machine.memory_bytes) if machine.memory_bytes else "not said"),
        ("measured times", f"{len(machine.measured):,}"),
    ]
    links = [] if machine.intra is None else [("inside a node", machine.intra)]
    links += [(f"axis {axis}", link) for axis, link in machine.axis_links]
    rows += [(name, f"alpha {link.alpha:.3g} s, beta {link.beta:.3g} s/B") for name, link in links]
    parts = (plot_canvas(plot), fact_rows(rows, "number"))
    return Figure(f"machine {machine.name}", parts, (machine.certainty,))


def prediction_figure(prediction: Prediction) -> Figure:
    """Times of algorithms as lines, and as a table with the fastest marked."""
    points = prediction.points[:10]
    columns = ("algorithm", *(f"{point.ranks} x {size_words(point.nbytes)}" for point in points))
    rows = [(name, *(_cell(point, name).rstrip() for point in points)) for name in prediction.algorithms]
    rows.append(("(bound)", *(microseconds(point.bound) for point in points)))
    right = tuple(range(1, len(columns)))
    table = FactTable(columns, tuple(rows), "microseconds by ranks x bytes; * is fastest", right)
    plot = prediction_plot(prediction, 8)
    drawn = (plot_canvas(plot),) if len(prediction.points) > 1 else ()
    return Figure(plot.title, (*drawn, table))
