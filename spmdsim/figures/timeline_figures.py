"""Draw runs as timelines: a lane per rank, a bar for each call, hatched waits, arrows for messages.

:func:`draw_timeline` draws bars and arrows; the other functions make them of traces and reports. Long idle times are
cut, with a mark. Without the cut, two calls far apart would be two thin lines at the ends of an empty axis.
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

LENGTH, LANE, TOP = 740.0, 24.0, 22
"""Length of the time axis, height of a lane, and upper edge of the first lane, in pixels."""
LEAST_CUT = 12.0
"""Smallest width of the mark of two slanted lines, in pixels."""
MOST_LANES, MOST_BARS, MOST_ARROWS, MOST_WAITS = 32, 1_500, 400, 20


@dataclass(frozen=True)
class Bar:
    """A bar of a timeline, such as a call.

    Attributes:
        lane: number of its lane.
        name: name of the call.
        start: first second.
        end: last second.
        facts: further text for a pointer.
        waits: seconds at its start in which the rank waits.
    """

    lane: int
    name: str
    start: float
    end: float
    facts: str = ""
    waits: float = 0.0


def draw_timeline(
    names: Sequence[str], bars: Sequence[Bar], arrows: Sequence[tuple[int, float, int, float, str]] = ()
) -> Canvas:
    """Draw a timeline: a lane per name, a bar per call, arrows for messages, and a legend below.

    All lanes share one axis of time, 740 pixels long, from the first start to the last end of all bars. Long idle times
    are cut out of it (see `TimeAxis`). If a bar has a wait, its beginning is hatched.

    Args:
        names: names of the lanes, from top to bottom.
        bars: the bars; the first ``MOST_BARS`` (1,500) are drawn. Bars of equal names have one colour.
        arrows: (sending lane, second, receiving lane, second, text for a pointer); the first ``MOST_ARROWS`` (400) are
            drawn. () for none.
    """
    out, low = Canvas(), TOP + len(names) * LANE
    kinds = list(dict.fromkeys(bar.name for bar in bars))
    axis = TimeAxis(((bar.start, bar.end) for bar in bars), LENGTH)
    margin = max(map(width_of, names), default=0) + 10
    for lane, name in enumerate(names):
        y = TOP + lane * LANE
        out.text(0, y + 15, name)
        out.line(margin, y + LANE - 2, margin + LENGTH, y + LANE - 2)
    _draw_ticks(out, axis, margin, low)
    for start, end in axis.cuts:
        pointer_text = f"nothing happens for {seconds_text(end - start)}"
        _draw_cut(out, margin + axis.place(start), margin + axis.place(end), 16, low, pointer_text)
    for bar in bars[:MOST_BARS]:
        _draw_bar(out, bar, axis, margin, kinds.index(bar.name))
    for source, sent, target, received, words in arrows[:MOST_ARROWS]:
        start_point = margin + axis.place(sent), TOP + source * LANE + 9
        end_point = margin + axis.place(received), TOP + target * LANE + 9
        out.arrow(*start_point, *end_point, title=words, wide=0.8)
    _draw_legend(out, kinds, axis, margin, low + 10, any(bar.waits for bar in bars))
    return out


def _draw_ticks(out: Canvas, axis: TimeAxis, margin: float, low: float) -> None:
    """Draw a vertical line for each tick of a time axis, and a text above it.

    The text is the time since the first event. Behind a cut, only the first tick has this time; the next ones have "+"
    and the time since that tick. For example, if a cut ends after 100 s, the texts are "100 s", "+1 s", "+2 s". A text
    that is equal to the one before is left out.

    Args:
        out: the canvas; changed in place.
        axis: the time axis.
        margin: the x-coordinate of the first event in pixels.
        low: the y-coordinate of the lower end of the lines in pixels.
    """
    label = ""
    # A span is the drawn time between two cuts; the first one starts at 0.
    for span_start, offset, position in axis.ticks():
        x, last_label = margin + position, label
        out.line(x, 16, x, low)
        is_further_tick_behind_cut = span_start > 0 and offset > 0
        label = (
            f"+{seconds_text(offset)}" if is_further_tick_behind_cut else seconds_text(span_start + offset)
        )
        if label != last_label:
            out.text(x, 12, label, "faint", "middle" if position else "start")


def _draw_bar(out: Canvas, bar: Bar, axis: TimeAxis, margin: float, fill: int) -> None:
    """Draw a bar in its lane, hatch the wait at its start, and write its name if that fits.

    The hatching ends with the bar, even if the wait is longer. The text for a pointer is "NAME: DURATION, FACTS; waits
    TIME", without facts or wait if there are none.

    Args:
        out: the canvas; changed in place.
        bar: the bar.
        axis: the time axis.
        margin: the x-coordinate of the first event in pixels.
        fill: the number of the bar's colour.
    """
    x, y = margin + axis.place(bar.start), TOP + bar.lane * LANE + 2
    width = margin + axis.place(bar.end) - x
    pointer_text = f"{bar.name}: {seconds_text(bar.end - bar.start)}{', ' + bar.facts if bar.facts else ''}"
    if bar.waits:
        pointer_text += f"; waits {seconds_text(bar.waits)}"
    out.bar(x, y, width, LANE - 6, fill_of(fill)[0], pointer_text)
    if bar.waits:
        wait_width = margin + axis.place(bar.start + bar.waits) - x
        _draw_hatching(out, x, y, min(wait_width, width), LANE - 6)
    if width > width_of(bar.name) + 4:
        out.text(x + 3, y + 13, bar.name, colour=fill_of(fill)[1], title=pointer_text)


def _draw_legend(
    out: Canvas, kinds: Sequence[str], axis: TimeAxis, margin: float, y: float, has_waits: bool
) -> None:
    """Draw the legend of a timeline: the colours of bars, hatching, and cuts.

    The entries are in rows, at most as wide as the timeline, in this order:

    1. each name of bars beside its colour;
    2. "hatched: waits", if there are waits;
    3. "cut: nothing happens for TIME", if there are cuts. TIME is the total time of all cuts; with several cuts, "in
       all" follows.

    Args:
        out: the canvas; changed in place.
        kinds: names of the bars, in the order of their colours; the first 24 are drawn.
        axis: the time axis, which has the cuts.
        margin: the x-coordinate of the first event in pixels.
        y: upper edge, in pixels.
        has_waits: True to explain hatching.
    """
    x = 0.0
    for fill, name in enumerate(kinds[:24]):
        width = width_of(name) + 30
        if x + width > margin + LENGTH:
            x, y = 0.0, y + 20
        out.cell(x, y, 14, 14, [], fill)
        out.text(x + 18, y + 11, name)
        x += width
    if has_waits:
        width = width_of("hatched: waits") + 30
        if x + width > margin + LENGTH:
            x, y = 0.0, y + 20
        out.bar(x, y, 14, 14, "var(--line)")
        _draw_hatching(out, x, y, 14, 14)
        out.text(x + 18, y + 11, "hatched: waits")
        x += width
    if axis.cuts:
        words = f"cut: nothing happens for {seconds_text(axis.idle)}" + (" in all" if axis.cuts[1:] else "")
        if x and x + width_of(words) > margin + LENGTH:
            x, y = 0.0, y + 20
        start, end = axis.cuts[0]
        _draw_cut(out, x, x + min(14, axis.place(end) - axis.place(start)), y, y + 14, words)
        out.text(x + 18, y + 11, words)


def _draw_cut(out: Canvas, left: float, right: float, top: float, low: float, pointer_text: str) -> None:
    """Draw the mark of a cut idle time: two slanted lines, or a dashed line if it is narrow.

    Narrow is less than :data:`LEAST_CUT` (12) pixels. The space between the edges is cleared first.

    Args:
        out: the canvas; changed in place.
        left: left edge, in pixels.
        right: right edge.
        top: upper edge.
        low: lower edge.
        pointer_text: text that a pointer shows.
    """
    out.parts.append(
        f'<rect class="ground" x="{number(left)}" y="{number(top)}" width="{number(right - left)}" height="{number(low - top)}"/>'
    )
    middle = (left + right) / 2
    if right - left < LEAST_CUT:
        out.line(middle, low, middle, top, "edge", ' stroke-dasharray="2 3"', pointer_text)
        return
    for aside in (-3, 3):
        out.line(middle + aside - 3, low, middle + aside + 3, top, "edge", title=pointer_text)


def _draw_hatching(out: Canvas, x: float, y: float, width: float, height: float) -> None:
    """Draw close lines that rise to the right over a box; they mark a wait."""
    lines = []
    for k in range(0, max(int(width), 1), 6):
        run = number(min(height, width - k))
        lines.append(f"M{number(x + k)} {number(y + height)}l{run} -{run}")
    out.parts.append(f'<path d="{"".join(lines)}" stroke="var(--ink)" stroke-opacity=".7" fill="none"/>')


def trace_figure(trace: Trace) -> Figure:
    """Draw a trace as a timeline above a table: operators in one lane, collectives in the other.

    The first ``MOST_BARS`` (1,500) events are drawn; the table has all. Notes state the number of collectives of each
    kind, the bytes that the busiest rank receives, and the ranks that the trace is of. An empty trace has neither
    timeline nor table. As text, the figure is the table alone.

    Args:
        trace: the recorded operators and collectives of this process.
    """
    operators = [
        Bar(0, e.name, e.start, e.start + e.seconds, f"{e.strategy}, {e.source}") for e in trace.operators
    ]
    collectives = [
        Bar(1, e.collective, e.start, e.start + e.seconds, f"in {e.operator}, {_count_received(e)} received")
        for e in trace.collectives
    ]
    owners = sorted({rank for event in trace.collectives for rank in event.ranks})
    ranks_words = "this rank"
    if len(owners) > 1:
        ranks_words = f"ranks {owners[0]} to {owners[-1]} of this process, which take part together"
    counts = ", ".join(f"{count} {name}" for name, count in trace.counts().items()) or "no collective"
    largest_text = f"{bytes_text(trace.nbytes())} received by the rank that receives most"
    notes = [f"{counts}; {largest_text}", f"measured on {ranks_words}"]
    if len(trace) > MOST_BARS:
        notes.append(f"the first {MOST_BARS:,} of {len(trace):,} events are drawn")
    title = f"trace of {many(len(trace.operators), 'operator')} and {many(len(trace.collectives), 'step')}"
    table = events_table(trace, trace.control)
    if not len(trace):
        return Figure(title, (), tuple(notes[:1]), lambda _: [table])
    timeline = draw_timeline(("operators", "collectives"), [*operators, *collectives])
    return Figure(title, (timeline, table), tuple(notes), lambda _: [table])


def _count_received(event: CollectiveEvent) -> str:
    """Return the bytes that the busiest rank receives in a collective, as text."""
    return bytes_text(max(event.nbytes, default=0))


def losses_figure(losses: Sequence[float]) -> Figure:
    """Draw a plot of the loss of each training step; losses that are not above 0 are left out.

    Steps are counted from 1. Without a loss above 0 there is no plot; a note has the first and the last loss.
    """
    points = tuple((float(step), loss) for step, loss in enumerate(losses, 1) if loss > 0)
    plot = Plot("loss", "step", "loss", (Line("loss", points),))
    plots = (plot_canvas(plot, 560, 300),) if points else ()
    notes = (f"loss {losses[0]:.6g} at first, {losses[-1]:.6g} at last",) if losses else ()
    return Figure(many(len(losses), "step"), plots, notes)


def report_figure(report: Report) -> Figure:
    """Draw a simulated run: a timeline with a lane per rank, above a table of messages.

    - With a trace in the report, the lanes show each rank's calls, their waits, and arrows for messages.
    - Without one, each rank has one bar of its total time, and a note says how to get a trace.

    The first ``MOST_LANES`` (32) ranks are drawn; the table has all. It has the messages, sent bytes and seconds of each
    rank. A second table has the longest waiting times (20). Notes state the totals and the first 8 problems, such as a deadlock. All times are modelled.

    Args:
        report: the report of :func:`spmdsim.simulate`.
    """
    state = "all finished" if report.completed else "stopped"
    message_text = f"{many(sum(report.messages), 'message')}, {bytes_text(sum(report.nbytes))}"
    notes = [f"{state}; {message_text}, {seconds_text(max(report.seconds, default=0.0))} modelled"]
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
    rank_facts = zip(report.messages, report.nbytes, report.seconds)
    rows = tuple(
        (str(rank), f"{messages:,}", bytes_text(nbytes), seconds_text(seconds))
        for rank, (messages, nbytes, seconds) in enumerate(rank_facts)
    )
    clock = "ends after" if report.completed else "last call ended after"
    table = Table(("rank", "messages", "bytes sent", clock), rows, right=(1, 2, 3))
    word = "ok" if report.ok else "with mistakes"
    title = f"simulated run on {many(report.size, 'rank')}: {word}"
    waits = (report.waits_table(MOST_WAITS),) if report.waits else ()
    return Figure(title, (draw_timeline(names, bars, arrows), table, *waits), tuple(notes))


def chrome_bars(
    trace: dict[str, Any], ranks: int
) -> tuple[list[Bar], list[tuple[int, float, int, float, str]]]:
    """Convert a timeline in Chrome's format to bars (calls) and arrows (messages) of seconds.

    The wait of a call is found as follows:

    - If the call receives messages that were sent after its start: it waits until the last of them was sent.
    - If it never returns, because of a deadlock: it waits to its end.
    - Otherwise it does not wait.

    For example, a receive that starts after 2 s and gets a message sent after 5 s waits 3 s.

    Args:
        trace: the content of the file, with times in microseconds.
        ranks: number of ranks; events of further ranks are left out.

    Returns:
        ``(bars, arrows)``. The lane of a bar is its rank. An arrow is (sending rank, second, receiving rank, second,
        text); arrows to or from further ranks are left out.
    """
    # Phase "s" is the send of a message, "f" is its receipt, and "X" is a call.
    send_events: dict[int, dict[str, Any]] = {}
    arrows, times_of_messages = [], defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "s":
            send_events[event["id"]] = event
        elif event["ph"] == "f" and event["id"] in send_events:
            send = send_events[event["id"]]
            times_of_messages[event["pid"]].append((event["ts"], send["ts"]))
            if max(event["pid"], send["pid"]) < ranks:
                arrows.append((send["pid"], send["ts"] / 1e6, event["pid"], event["ts"] / 1e6, event["name"]))
    bars = []
    for event in trace["traceEvents"]:
        if event["ph"] != "X" or event["pid"] >= ranks:
            continue
        start, end = event["ts"], event["ts"] + event["dur"]
        if event.get("cat") == "wait":  # a call that never returns
            send_times = [end]
        else:
            send_times = [
                send_time
                for receive_time, send_time in times_of_messages[event["pid"]]
                if start < receive_time <= end * (1 + 1e-12) and send_time > start
            ]
        facts = ", ".join(f"{key} {value}" for key, value in event.get("args", {}).items())
        waits = (max(send_times) - start) / 1e6 if send_times else 0.0
        bars.append(Bar(event["pid"], event["name"], start / 1e6, end / 1e6, facts, waits))
    return bars, arrows
