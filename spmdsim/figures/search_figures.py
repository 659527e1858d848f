"""Draw searches: the factor that each axis splits in each operator, the time of its parts, time against memory.

Colours show the parts of the time; points of the plot have other colours. Cells of factors have no colour; letters, or
the dim of the result, name them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from spmdsim.auto_parallel.frontier import frontier_table
from spmdsim.auto_parallel.search_report import (
    PARTS,
    comparison_table,
    factor_words,
    operator_rows,
    report_parts,
    strategy_words,
    why_lines,
    why_table,
)
from spmdsim.errors import many
from spmdsim.figures.canvas import Canvas, fill_of, width_of
from spmdsim.figures.figures import Figure
from spmdsim.figures.plot import TIME, Line, Plot, plot_canvas
from spmdsim.redistribution.plans.plan_table import seconds_text
from spmdsim.tables import Table
from spmdsim.worlds.trace.event_table import nbytes_text

if TYPE_CHECKING:
    from spmdsim.auto_parallel.frontier import TradeOff
    from spmdsim.auto_parallel.search_result import SearchResult, WhyNot

MOST_OPERATORS = 48
SPLIT = 0.12
"""Shade of a cell whose axis splits something."""
TRADE = "time against memory: left and below is better"


def search_figure(answer: SearchResult) -> Figure:
    """Draw the strategies that a search found: a row per operator, a column per mesh axis, and the time.

    A plot compares them with strategies that are common by hand.
    """
    within = f" to within {answer.within:.2%}" if answer.within else ""
    best = f"the optimum under the model{within}" if answer.optimal else f"found by {answer.method}"
    collectives = (
        ", ".join(f"{count} {name}" for name, count in answer.collectives.items()) or "no collective"
    )
    notes = (
        f"{many(answer.mesh.size, 'rank')} as {answer.mesh} on {answer.settings.machine.name}, {best}",
        f"one step takes {seconds_text(answer.seconds)}; a rank receives {nbytes_text(answer.nbytes)} in {collectives}, and "
        f"holds {nbytes_text(answer.memory.peak)} at most",
        *answer.remarks,
    )
    parts = (_draw_operators(answer), _draw_comparison(answer), comparison_table(answer))
    return Figure(f"strategies for {answer.graph}", parts, notes, lambda _: report_parts(answer))


def _draw_operators(answer: SearchResult) -> Canvas:
    """Draw a row per operator: the factor of each axis, the layout of the result, the parts of the time."""
    out, axes = Canvas(), answer.mesh.axes
    facts = operator_rows(answer)
    rows = facts if len(facts) <= MOST_OPERATORS else facts[:MOST_OPERATORS]
    names_width = max(width_of(str(row["name"])) for row in rows) + 12
    strategies = answer.choice.strategies
    factor_of = [{axis: factor for factor, split in s.splits for axis in split} for s in strategies]
    named = [factor_words(operator.bound) for operator in answer.graph.operators]
    words = [
        {axis: names_width[factor] for axis, factor in words_of_axis.items()}
        for words_of_axis, names_width in zip(factor_of, named)
    ]
    heads = [f"{axis}={answer.mesh.axis_size(axis)}" for axis in axes]
    wide = (
        max(map(width_of, (*(text for words_of_axis in words for text in words_of_axis.values()), *heads)))
        + 16
    )
    results = names_width + len(axes) * wide + 12
    result_width = max(width_of(str(row["output"]) or "-") for row in rows) + 14
    times = results + result_width
    longest = max(float(row["seconds"]) for row in rows) or 1.0
    for k, head in enumerate(heads):
        out.text(names_width + k * wide + wide / 2, 14, head, "faint", "middle")
    out.text(results, 14, "result", "faint")
    out.text(times, 14, "time", "faint")
    for line, row in enumerate(rows):
        y = 22 + line * 22
        out.text(0, y + 15, str(row["name"]), title=str(row["source"] or row["kind"]))
        for k, axis in enumerate(axes):
            factor = words[line].get(axis)
            pointer_text = f"{axis} splits {factor} of {row['name']}"
            pointer_text = pointer_text if factor else f"{row['name']} is the same along {axis}"
            out.cell(
                names_width + k * wide,
                y,
                wide,
                20,
                [factor or "·"],
                None,
                pointer_text,
                SPLIT if factor else 0.0,
            )
        out.text(results, y + 15, str(row["output"]) or "-")
        x = times
        for index, kind in enumerate(PARTS):
            seconds = float(row[kind])
            if seconds > 0:
                pointer_text, length = (
                    f"{row['name']}: {kind} {seconds_text(seconds)}",
                    240 * seconds / longest,
                )
                out.bar(x, y + 3, length, 14, fill_of(index)[0], pointer_text)
                x += length
        out.text(x + 6, y + 15, seconds_text(float(row["seconds"])), "faint")
    y = 22 + len(rows) * 22 + 12
    if len(facts) > len(rows):
        out.text(0, y + 11, f"... {many(len(facts) - len(rows), 'more operator')}", "faint")
        y += 20
    out.text(0, y + 12, "time", "faint")
    x = width_of("time") + 12
    for index, kind in enumerate(PARTS):
        out.bar(x, y, 14, 14, fill_of(index)[0])
        out.text(x + 18, y + 12, kind)
        x += width_of(kind) + 36
    y += 20
    if any(
        text.startswith("dim ") for words_of_axis in words[: len(rows)] for text in words_of_axis.values()
    ):
        out.text(
            0,
            y + 12,
            "cells: the factor of the operator's rule, or the dim of its result, that the axis splits",
            "faint",
        )
    else:
        out.text(0, y + 12, "cells: the factor of the operator's rule that the axis splits", "faint")
    if any(len(words_of_axis) < len(axes) for words_of_axis in factor_of[: len(rows)]):
        out.text(0, y + 32, "· the same along the axis", "faint")
    return out


def _draw_comparison(answer: SearchResult) -> Canvas:
    """Draw time against memory of the search result and of common strategies."""
    lines = tuple(
        Line(name, ((float(choice.memory.peak), choice.seconds),))
        for name, choice in {"found": answer, **answer.comparison}.items()
        if choice.memory.peak > 0 and choice.seconds > 0
    )
    return plot_canvas(Plot(TRADE, "peak bytes of a rank", TIME, lines, first_ink=len(PARTS)), height=300)


def frontier_figure(points: Sequence[TradeOff]) -> Figure:
    """Draw the trade-offs of time and memory that are best in one of both (Pareto)."""
    by_mesh: dict[str, list[tuple[float, float]]] = {}
    for point in points:
        by_mesh.setdefault(str(point.mesh), []).append((point.memory, point.seconds))
    lines = tuple(Line(name, tuple(sorted(pairs))) for name, pairs in by_mesh.items())
    plot = Plot(TRADE, "bytes of a rank", TIME, lines)
    return Figure(
        f"{len(points)} trade-offs of time and memory (Pareto)", (plot_canvas(plot), frontier_table(points))
    )


def trade_off_figure(point: TradeOff) -> Figure:
    """Draw a table of the strategies of one trade-off."""
    rows = tuple(
        (
            operator.name,
            strategy_words(operator.bound, strategy),
            point.choice.layouts[operator.outputs[0]].placement_text() or "-",
        )
        for operator, strategy in zip(point.choice.graph.operators, point.choice.strategies)
    )
    title = f"{seconds_text(point.seconds)} with {nbytes_text(point.memory)} of a rank on {point.mesh}"
    return Figure(title, (Table(("operator", "strategy", "result"), rows),))


def why_figure(answer: WhyNot) -> Figure:
    """Draw the time with one given strategy beside the best time, and the changes."""
    out = Canvas()
    choices = (("best", answer.best), (f"with {answer.operator.name} given", answer.other))
    margin = max(width_of(name) for name, _ in choices) + 12
    longest = max(choice.seconds for _, choice in choices) or 1.0
    for line, (name, choice) in enumerate(choices):
        out.text(0, 15 + 26 * line, name)
        out.bar(margin, 26 * line, 400 * choice.seconds / longest, 20, fill_of(line)[0], name)
        out.text(
            margin + 406 * choice.seconds / longest + 6, 15 + 26 * line, seconds_text(choice.seconds), "faint"
        )
    table = why_table(answer)
    tables = (table,) if table.rows else ()
    title = f"why not another strategy for {answer.operator.name}"
    lines = why_lines(answer)
    return Figure(title, (out, *tables), lines, lambda _: [*lines, *tables])
