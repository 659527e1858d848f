"""Figures of runs: a line per rank, time to the right, a bar for each call; waits are hatched, messages are arrows.

Long times in which nothing happens are cut, with a mark: else two calls far apart are two lines at the ends of nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spmdsim.errors import many
from spmdsim.figures.canvas import Canvas, fill_of, number, width_of
from spmdsim.figures.figures import Figure
from spmdsim.figures.plot import Line, Plot, plot_canvas
from spmdsim.figures.time_axis import TimeAxis
from spmdsim.redistribution.plans.plan_table import bytes_text, seconds_text
from spmdsim.tables import Table
from spmdsim.worlds.trace.event_table import events_table
from spmdsim.worlds.trace.events import CollectiveEvent

if TYPE_CHECKING:
    from spmdsim.simulation.simulation_report import Report
    from spmdsim.worlds.trace.recorder import Trace

LENGTH, LANE = 800.0, 24.0
MOST_LANES, MOST_BARS, MOST_ARROWS = 32, 1_500, 400


@dataclass(frozen=True)
class Bar:
    """Something that a lane does, from ``start`` to ``end`` in seconds; ``waits`` of it at its beginning."""

    lane: int
    name: str
    start: float
    end: float
    facts: str = ""
    waits: float = 0.0


def lanes(
    names: Sequence[str], bars: Sequence[Bar], arrows: Sequence[tuple[int, float, int, float, str]] = ()
) -> Canvas:
    """A timeline of bars, and of arrows from a sending lane and time to a receiving lane and time."""
    out = Canvas()
    kinds = list(dict.fromkeys(bar.name for bar in bars))
    axis = TimeAxis(((bar.start, bar.end) for bar in bars), LENGTH)
    margin = max(map(width_of, names), default=0) + 10
    for lane, name in enumerate(names):
        y = 22 + lane * LANE
        out.text(0, y + 15, name)
        out.line(margin, y + LANE - 2, margin + LENGTH, y + LANE - 2)
    for tick, place in axis.ticks():
        x = margin + place
        out.line(x, 16, x, 22 + len(names) * LANE)
        out.text(x, 12, seconds_text(tick), "faint", "middle" if tick else "start")
    for start, end in axis.cuts:
        told = f"nothing happens for {seconds_text(end - start)}"
        _cut(out, margin + axis.place(start), margin + axis.place(end), 16, 22 + len(names) * LANE, told)
    for bar in bars[:MOST_BARS]:
        x = margin + axis.place(bar.start)
        wide = margin + axis.place(bar.end) - x
        y, index = 22 + bar.lane * LANE + 2, kinds.index(bar.name)
        told = f"{bar.name}: {seconds_text(bar.end - bar.start)}{', ' + bar.facts if bar.facts else ''}"
        if bar.waits:
            told += f"; waits {seconds_text(bar.waits)}"
        out.bar(x, y, wide, LANE - 6, fill_of(index)[0], told)
        if bar.waits:
            waits = margin + axis.place(bar.start + bar.waits) - x
            _hatched(out, x, y, min(waits, wide), LANE - 6)
        if wide > width_of(bar.name) + 4:
            out.text(x + 3, y + 13, bar.name, colour=fill_of(index)[1], title=told)
    for source, sent, target, received, words in arrows[:MOST_ARROWS]:
        begins = margin + axis.place(sent), 22 + source * LANE + 9
        ends = margin + axis.place(received), 22 + target * LANE + 9
        out.arrow(*begins, *ends, title=words, wide=0.8)
    x, y = 0.0, 22 + len(names) * LANE + 10
    for index, name in enumerate(kinds[:24]):
        wide = width_of(name) + 30
        if x + wide > margin + LENGTH:
            x, y = 0.0, y + 20
        out.cell(x, y, 14, 14, [], index)
        out.text(x + 18, y + 11, name)
        x += wide
    if any(bar.waits for bar in bars):
        out.bar(x, y, 14, 14, "var(--line)")
        _hatched(out, x, y, 14, 14)
        out.text(x + 18, y + 11, "hatched: waits")
        x += width_of("hatched: waits") + 30
    if axis.cuts:
        words = f"cut: nothing happens for {seconds_text(axis.idle)}" + (" in all" if axis.cuts[1:] else "")
        if x and x + width_of(words) > margin + LENGTH:
            x, y = 0.0, y + 20
        _cut(out, x, x + 14, y, y + 14, words)
        out.text(x + 18, y + 11, words)
    return out


def _cut(out: Canvas, left: float, right: float, top: float, low: float, told: str) -> None:
    """Two slanted lines over cleared ground: time that is left out."""
    out.parts.append(
        f'<rect class="ground" x="{number(left)}" y="{number(top)}" width="{number(right - left)}" height="{number(low - top)}"/>'
    )
    middle = (left + right) / 2
    for aside in (-3, 3):
        out.line(middle + aside - 3, low, middle + aside + 3, top, "edge", title=told)


def _hatched(out: Canvas, x: float, y: float, width: float, height: float) -> None:
    lines = "".join(
        f"M{number(x + k)} {number(y + height)}l{number(min(height, width - k))} -{number(min(height, width - k))}"
        for k in range(0, max(int(width), 1), 6)
    )
    out.parts.append(f'<path d="{lines}" stroke="var(--ink)" stroke-opacity=".7" fill="none"/>')


def trace_figure(trace: Trace) -> Figure:
    """What was recorded: operators in one lane, their collectives in another, and what the collectives moved."""
    operators = [
        Bar(0, e.name, e.start, e.start + e.seconds, f"{e.strategy}, {e.source}") for e in trace.operators
    ]
    collectives = [
        Bar(1, e.collective, e.start, e.start + e.seconds, f"in {e.operator}, {_received(e)} received")
        for e in trace.collectives
    ]
    owners = sorted({rank for event in trace.collectives for rank in event.ranks})
    who = "this rank"
    if len(owners) > 1:
        who = f"ranks {owners[0]} to {owners[-1]} of this process, which take part together"
    counts = ", ".join(f"{count} {name}" for name, count in trace.counts().items()) or "no collective"
    most = f"{bytes_text(trace.nbytes())} received by the rank that receives most"
    notes = [f"{counts}; {most}", f"measured on {who}"]
    if len(trace) > MOST_BARS:
        notes.append(f"the first {MOST_BARS:,} of {len(trace):,} events are drawn")
    title = f"trace of {many(len(trace.operators), 'operator')} and {many(len(trace.collectives), 'step')}"
    table = events_table(trace)
    if not len(trace):
        return Figure(title, (), tuple(notes[:1]), lambda _: [table])
    drawn = lanes(("operators", "collectives"), [*operators, *collectives])
    return Figure(title, (drawn, table), tuple(notes), lambda _: [table])


def _received(event: CollectiveEvent) -> str:
    return bytes_text(max(event.nbytes, default=0))


def losses_figure(losses: Sequence[float]) -> Figure:
    """The loss of every step of a training."""
    points = tuple((float(step), loss) for step, loss in enumerate(losses, 1) if loss > 0)
    plot = Plot("loss", "step", "loss", (Line("loss", points),))
    drawn = (plot_canvas(plot, 560, 300),) if points else ()
    notes = (f"loss {losses[0]:.6g} at first, {losses[-1]:.6g} at last",) if losses else ()
    return Figure(many(len(losses), "step"), drawn, notes)


def report_figure(report: Report) -> Figure:
    """A simulated run: with a trace the calls of every rank and their waits, without one what each rank came to."""
    total, state = sum(report.messages), "all finished" if report.completed else "stopped"
    notes = [
        f"{state}; {many(total, 'message')}, {bytes_text(sum(report.nbytes))}, {seconds_text(max(report.seconds, default=0.0))} modelled"
    ]
    notes += [str(problem) for problem in report.problems[:8]]
    if report.size > MOST_LANES:
        notes.append(f"the first {MOST_LANES} of {report.size:,} ranks are drawn")
    ranks = range(min(report.size, MOST_LANES))
    names = [f"rank {rank}" for rank in ranks]
    if report.trace is not None:
        bars, arrows = chrome_bars(report.trace, len(names))
    else:
        bars = [Bar(rank, "runs", 0.0, report.seconds[rank]) for rank in ranks]
        arrows = []
        notes.append("simulate(..., trace=True) has the calls of every rank")
    each = zip(report.messages, report.nbytes, report.seconds)
    rows = tuple(
        (str(rank), f"{messages:,}", bytes_text(nbytes), seconds_text(seconds))
        for rank, (messages, nbytes, seconds) in enumerate(each)
    )
    clock = "ends after" if report.completed else "last call ended after"
    table = Table(("rank", "messages", "bytes sent", clock), rows, right=(1, 2, 3))
    word = "ok" if report.ok else "with mistakes"
    title = f"simulated run on {many(report.size, 'rank')}: {word}"
    return Figure(title, (lanes(names, bars, arrows), table), tuple(notes))


def chrome_bars(
    trace: dict[str, Any], ranks: int
) -> tuple[list[Bar], list[tuple[int, float, int, float, str]]]:
    """The calls and messages of a timeline in Chrome's format; a call waits for its last message, or in vain."""
    starts: dict[int, dict[str, Any]] = {}
    arrows, begins = [], defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "s":
            starts[event["id"]] = event
        elif event["ph"] == "f" and event["id"] in starts:
            sent = starts[event["id"]]
            begins[event["pid"]].append((event["ts"], sent["ts"]))
            if max(event["pid"], sent["pid"]) < ranks:
                arrows.append((sent["pid"], sent["ts"] / 1e6, event["pid"], event["ts"] / 1e6, event["name"]))
    bars = []
    for event in trace["traceEvents"]:
        if event["ph"] != "X" or event["pid"] >= ranks:
            continue
        start, end = event["ts"], event["ts"] + event["dur"]
        late = [end] * (event.get("cat") == "wait") or [
            sent
            for received, sent in begins[event["pid"]]
            if start < received <= end * (1 + 1e-12) and sent > start
        ]
        facts = ", ".join(f"{key} {value}" for key, value in event.get("args", {}).items())
        waits = (max(late) - start) / 1e6 if late else 0.0
        bars.append(Bar(event["pid"], event["name"], start / 1e6, end / 1e6, facts, waits))
    return bars, arrows
