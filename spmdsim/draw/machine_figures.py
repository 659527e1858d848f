"""Figures of machines and predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spmdsim.draw.figures import FactTable, Figure
from spmdsim.draw.plot import Line, Plot, plot_canvas
from spmdsim.draw.prediction_text import microseconds, prediction_plot, size_words
from spmdsim.redistribution.plan_table import bytes_text

if TYPE_CHECKING:
    from spmdsim.cost.machine import Machine
    from spmdsim.cost.prediction import Prediction

SIZES = tuple(4.0**k for k in range(2, 13))


def machine_figure(machine: Machine) -> Figure:
    """What a machine's messages and collectives cost over their sizes, and its numbers."""
    lines = [Line("one message", tuple((size, machine.message_seconds(size)) for size in SIZES))]
    for name in ("all_reduce", "all_gather", "all_to_all"):
        points = tuple((size, machine.seconds(name, 8, int(size))) for size in SIZES)
        lines.append(Line(f"{name}, 8 ranks", tuple((x, y) for x, y in points if y > 0)))
    plot = Plot(f"messages and collectives on {machine.name}", "bytes", "seconds", tuple(lines))
    rows = [
        ("alpha", f"{machine.alpha:.3g} s for a message"),
        (
            "beta",
            f"{machine.beta:.3g} s for a byte ({1 / machine.beta / 1e9:.3g} GB/s)" if machine.beta else "0",
        ),
        ("gamma", f"{machine.gamma:.3g} s to reduce a byte"),
        ("flops", f"{machine.flops:.3g} per second and rank"),
        ("beta_memory", f"{machine.beta_memory:.3g} s to copy a byte"),
        ("ranks per node", str(machine.ranks_per_node or "one level only")),
        ("memory of a rank", bytes_text(machine.memory_bytes) if machine.memory_bytes else "not said"),
        ("measured times", f"{len(machine.measured):,}"),
    ]
    if machine.intra is not None:
        rows.append(
            ("inside a node", f"alpha {machine.intra.alpha:.3g} s, beta {machine.intra.beta:.3g} s/B")
        )
    rows += [
        (f"axis {axis}", f"alpha {link.alpha:.3g} s, beta {link.beta:.3g} s/B")
        for axis, link in machine.axis_links
    ]
    return Figure(
        f"machine {machine.name}",
        (plot_canvas(plot), FactTable(("number", "value"), tuple(rows))),
        (machine.certainty,),
    )


def prediction_figure(prediction: Prediction) -> Figure:
    """Times of algorithms as lines, and as a table with the fastest marked."""
    columns = [
        "algorithm",
        *(f"{point.ranks} x {size_words(point.nbytes)}" for point in prediction.points[:10]),
    ]
    rows = []
    for name in prediction.algorithms:
        cells = [
            microseconds(p.seconds[name]) + ("*" if name == p.best else "") if name in p.seconds else "-"
            for p in prediction.points[:10]
        ]
        rows.append((name, *cells))
    rows.append(("(bound)", *(microseconds(p.bound) for p in prediction.points[:10])))
    table = FactTable(
        tuple(columns),
        tuple(rows),
        "microseconds by ranks x bytes; * is fastest",
        tuple(range(1, len(columns))),
    )
    plot = prediction_plot(prediction, 8)
    drawn = (plot_canvas(plot),) if len(prediction.points) > 1 else ()
    return Figure(plot.title, (*drawn, table))
