"""Draw searches: the factor that each axis splits in each operator, the time of its parts, time against memory.

A factor is the letter of a dimension in an operator's rule. Colours show the parts of the time; points of the plot have
other colours. Cells of factors have no colour; letters, or the dimension of the result, name them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

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
    """Draw the result of a search: the strategy of each operator, and time against memory.

    The figure has three parts, one below the other:

    1. a row per operator with its strategy and its time;
    2. a plot of time against memory: a point for the result, and one for each common strategy;
    3. a table of the common strategies, such as data parallelism.

    Notes state the mesh, the machine, whether the result is the optimum, and the seconds, received bytes and peak
    memory of one step. As text, the figure is the report of the search instead.

    Args:
        answer: the result of the search.
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
    """Draw a table with a row per operator: what each mesh axis splits, the result's layout, the time.

    The columns are the operator's name, a cell per mesh axis, the layout of its result, and bars of its time. A cell has
    the factor that the axis splits, "·" if it splits none. A factor is a letter of the operator's rule: with the rule
    "m k, k n -> m n" the letter "k" means that the axis splits the sum.

    The first ``MOST_OPERATORS`` (48) rows are drawn; a line has the number of the others. All bars have one scale: the
    slowest drawn operator has 240 pixels. The legend follows.

    Args:
        answer: the result of the search.
    """
    facts = operator_rows(answer)
    rows = facts[:MOST_OPERATORS]
    factors = _split_factors(answer)
    heads = {axis: f"{axis}={answer.mesh.axis_size(axis)}" for axis in answer.mesh.axes}
    texts = [*(text for words in factors for text in words.values()), *heads.values()]
    cell_width = max(map(width_of, texts)) + 16
    cells_left = max(width_of(str(row["name"])) for row in rows) + 12
    results_left = cells_left + len(heads) * cell_width + 12
    times_left = results_left + max(width_of(str(row["output"]) or "-") for row in rows) + 14
    longest_seconds = max(float(row["seconds"]) for row in rows) or 1.0
    out = Canvas()
    for k, head in enumerate(heads.values()):
        out.text(cells_left + k * cell_width + cell_width / 2, 14, head, "faint", "middle")
    out.text(results_left, 14, "result", "faint")
    out.text(times_left, 14, "time", "faint")
    for line, (row, words) in enumerate(zip(rows, factors)):
        y, name = 22.0 + line * 22, row["name"]
        out.text(0, y + 15, str(name), title=str(row["source"] or row["kind"]))
        for k, axis in enumerate(heads):
            factor = words.get(axis)
            left, width = cells_left + k * cell_width, cell_width
            if factor is None:
                out.cell(left, y, width, 20, ["·"], None, f"{name} is the same along {axis}")
            else:
                out.cell(left, y, width, 20, [factor], None, f"{axis} splits {factor} of {name}", SPLIT)
        out.text(results_left, y + 15, str(row["output"]) or "-")
        _draw_times(out, row, times_left, y, 240 / longest_seconds)
    y = 22.0 + len(rows) * 22 + 12
    if len(facts) > len(rows):
        out.text(0, y + 11, f"... {many(len(facts) - len(rows), 'more operator')}", "faint")
        y += 20
    _draw_legend(out, y, factors[: len(rows)], len(heads))
    return out


def _split_factors(answer: SearchResult) -> list[dict[str, str]]:
    """Return, per operator, the factor that each mesh axis splits, as words by axis.

    For example, ``{"dp": "dim 0", "tp": "k"}``; see `factor_words`. Axes that split no factor of the operator are
    missing. ``answer`` is the result of the search.
    """
    factors = []
    for operator, strategy in zip(answer.graph.operators, answer.choice.strategies):
        words_by_factor = factor_words(operator.bound)
        factors.append({axis: words_by_factor[factor] for factor, axes in strategy.splits for axis in axes})
    return factors


def _draw_times(out: Canvas, row: Mapping[str, Any], x: float, y: float, scale: float) -> None:
    """Draw the parts of an operator's time as bars, and their sum as text.

    Bars follow each other from left to right in the order of :data:`PARTS`; parts of 0 seconds have none.
    """
    for index, kind in enumerate(PARTS):
        seconds = float(row[kind])
        if seconds > 0:
            pointer_text = f"{row['name']}: {kind} {seconds_text(seconds)}"
            out.bar(x, y + 3, scale * seconds, 14, fill_of(index)[0], pointer_text)
            x += scale * seconds
    out.text(x + 6, y + 15, seconds_text(float(row["seconds"])), "faint")


def _draw_legend(out: Canvas, y: float, factors: Sequence[Mapping[str, str]], axis_count: int) -> None:
    """Draw the legend below the operators: the colours of the time's parts, and the texts of cells.

    The words about dimensions are drawn only if a cell has one ("dim 0"), and the line about "·" only if a cell has it.

    Args:
        out: the canvas; changed in place.
        y: upper edge, in pixels.
        factors: for each drawn operator, the texts of its cells as ``{mesh axis: factor}``. An axis that splits nothing is
            missing; its cell has "·".
        axis_count: number of mesh axes.
    """
    out.text(0, y + 12, "time", "faint")
    x = width_of("time") + 12
    for index, kind in enumerate(PARTS):
        out.bar(x, y, 14, 14, fill_of(index)[0])
        out.text(x + 18, y + 12, kind)
        x += width_of(kind) + 36
    y += 20
    has_dims = any(text.startswith("dim ") for words in factors for text in words.values())
    or_dim = ", or the dim of its result," if has_dims else ""
    out.text(0, y + 12, f"cells: the factor of the operator's rule{or_dim} that the axis splits", "faint")
    if any(len(words) < axis_count for words in factors):
        out.text(0, y + 32, "· the same along the axis", "faint")


def _draw_comparison(answer: SearchResult) -> Canvas:
    """Draw a plot of time against memory of the search result and of common strategies.

    Time is the seconds of a step, memory the peak bytes of a rank. The result is called "found". Points that are not
    above 0 are left out. ``answer`` is the result of the search.
    """
    lines = tuple(
        Line(name, ((float(choice.memory.peak), choice.seconds),))
        for name, choice in {"found": answer, **answer.comparison}.items()
        if choice.memory.peak > 0 and choice.seconds > 0
    )
    return plot_canvas(Plot(TRADE, "peak bytes of a rank", TIME, lines, first_ink=len(PARTS)), height=300)


def frontier_figure(points: Sequence[TradeOff]) -> Figure:
    """Draw a plot and a table of trade-offs of time and memory, with a line per mesh.

    A trade-off is a choice of strategies such that no other choice is better in both (Pareto).

    Args:
        points: the trade-offs, at least one, in the order of the table.

    Raises:
        InputError: If there is no point, or a time or memory is not above 0.
    """
    by_mesh: dict[str, list[tuple[float, float]]] = {}
    for point in points:
        by_mesh.setdefault(str(point.mesh), []).append((point.memory, point.seconds))
    lines = tuple(Line(name, tuple(sorted(pairs))) for name, pairs in by_mesh.items())
    plot = Plot(TRADE, "bytes of a rank", TIME, lines)
    return Figure(
        f"{len(points)} trade-offs of time and memory (Pareto)", (plot_canvas(plot), frontier_table(points))
    )


def trade_off_figure(point: TradeOff) -> Figure:
    """Draw a table of the strategies and result layouts of one trade-off of time and memory.

    The table has a row per operator, with the layout of the first of its results. The title has the seconds of a step,
    the bytes of a rank and the mesh. ``point`` is the trade-off.
    """
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
    """Draw why a search did not choose a strategy: two bars of time, above a table of changes.

    The first bar is the time of the best program. The second one is the time of the best program in which one operator
    has the strategy that the user gives. Both have one scale; the longer one has 400 pixels. The table lists what differs
    between the two programs; without differences there is no table. The lines of `why_lines` are below the title.

    Args:
        answer: the comparison of the two programs.
    """
    out = Canvas()
    choices = (("best", answer.best), (f"with {answer.operator.name} given", answer.other))
    margin = max(width_of(name) for name, _ in choices) + 12
    longest_seconds = max(choice.seconds for _, choice in choices) or 1.0
    for line, (name, choice) in enumerate(choices):
        out.text(0, 15 + 26 * line, name)
        out.bar(margin, 26 * line, 400 * choice.seconds / longest_seconds, 20, fill_of(line)[0], name)
        out.text(
            margin + 406 * choice.seconds / longest_seconds + 6,
            15 + 26 * line,
            seconds_text(choice.seconds),
            "faint",
        )
    table = why_table(answer)
    tables = (table,) if table.rows else ()
    title = f"why not another strategy for {answer.operator.name}"
    lines = why_lines(answer)
    return Figure(title, (out, *tables), lines, lambda _: [*lines, *tables])
