"""Figures: what a value looks like, as HTML for notebooks and pages, as one SVG image, and as text.

A figure has a title and parts, drawings and tables. Which function makes the figure of which value stands in one table;
a value without an entry is shown by its public facts, so there is a figure of everything that the package returns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from html import escape, unescape
from importlib import import_module
from typing import Any

from spmdsim.draw.canvas import LETTER, MOST_BYTES, STYLE, Canvas, svg, width_of
from spmdsim.errors import InputError, UsageTypeError, many

GAP, ROW = 14, 18
MOST_FIGURES = 16
MOST_ROWS = 64
"""Rows of a table; of longer ones the first are shown, and how many there are."""


@dataclass(frozen=True)
class FactTable:
    """A table of a figure."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""
    right: tuple[int, ...] = ()  # numbers of the columns that are aligned right
    most: int = MOST_ROWS  # rows that are shown

    @property
    def shown(self) -> tuple[tuple[str, ...], ...]:
        """The rows, of many the first and the last."""
        if len(self.rows) <= self.most:
            return self.rows
        more = f"... {len(self.rows) - self.most} more"
        gap = (more, *("",) * (len(self.columns) - 1))
        return (*self.rows[: self.most - 1], gap, self.rows[-1])

    def html(self) -> str:
        """As a table that can be read out."""
        sides = [' class="right"' if k in self.right else "" for k in range(len(self.columns))]
        head = "".join(f'<th scope="col"{side}>{_words(c)}</th>' for c, side in zip(self.columns, sides))
        body = "".join(
            f"<tr>{''.join(f'<td{side}>{_words(cell)}</td>' for cell, side in zip(row, sides))}</tr>"
            for row in self.shown
        )
        caption = f"<caption>{_words(self.caption)}</caption>" if self.caption else ""
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def draw(self, canvas: Canvas, y: float) -> None:
        """On a drawing, from ``y`` on."""
        widths = [
            max(len(text) for text in column) * LETTER + 2 * LETTER
            for column in zip(self.columns, *self.shown)
        ]
        starts = [sum(widths[:k]) for k in range(len(widths) + 1)]
        if self.caption:
            canvas.text(0, y + 12, self.caption, "faint")
            y += ROW
        for row, cells in enumerate((self.columns, *self.shown)):
            for k, cell in enumerate(cells):
                right = k in self.right
                x = starts[k + 1] - 2 * LETTER if right else starts[k]
                canvas.text(x, y + 12 + ROW * row, cell, "" if row else "faint", "end" if right else "start")
        canvas.line(0, y + ROW - 1, starts[-1] - LETTER, y + ROW - 1)
        canvas.reach(starts[-1], y + ROW * (len(self.shown) + 1))

    def text(self) -> str:
        """As lines of text."""
        from spmdsim.redistribution.plan_table import text_table

        caption = f"{self.caption}\n" if self.caption else ""
        return caption + text_table(list(self.columns), [list(row) for row in self.shown], right=self.right)


def fact_rows(rows: Iterable[tuple[str, str]], key: str = "fact") -> FactTable:
    """A table of facts with their values."""
    return FactTable((key, "value"), tuple(rows))


Part = Canvas | FactTable


@dataclass(frozen=True)
class Figure:
    """What a value looks like."""

    title: str
    parts: tuple[Part, ...] = ()
    notes: tuple[str, ...] = ()  # lines under the title

    def svg(self) -> str:
        """All parts below each other in one image."""
        whole, y = Canvas(), 12.0
        for k, line in enumerate((self.title, *self.notes)):
            whole.text(0, y, line, _kind(line) if k else "title")
            y += ROW
        y -= 4
        for part in self.parts:
            if isinstance(part, FactTable):
                part.draw(whole, y)
            else:
                whole.parts.append(f'<g transform="translate(0 {y:.0f})">{"".join(part.parts)}</g>')
                whole.reach(part.width, y + part.height)
            y = whole.height + GAP
        return _limited(svg(whole, self.title, told="; ".join(self.notes) or _read(whole)), self.title)

    def html(self, heading: str = "h4") -> str:
        """As a fragment of a page: drawings as images that scroll, tables as tables."""
        told = [f"<{heading}>{_words(self.title)}</{heading}>"]
        told += [f'<p class="{_kind(line)}">{_words(line)}</p>' for line in self.notes]
        for part in self.parts:
            inner = part.html() if isinstance(part, FactTable) else svg(part, self.title, 4)
            told.append(f'<div class="scroll">{inner}</div>')
        return _limited(f'<div class="spmdsim"><style>{STYLE}</style>{"".join(told)}</div>', self.title)

    def text(self) -> str:
        """Title, notes and tables as text; drawings have texts of their own elsewhere."""
        tables = [part.text() for part in self.parts if isinstance(part, FactTable)]
        return "\n".join((self.title, *self.notes, *tables))


def _words(text: str) -> str:
    """Text on a page, in which no arrow is torn at the end of a line."""
    return escape(text).replace("-&gt;", '<span style="white-space:nowrap">-&gt;</span>')


def _read(drawing: Canvas) -> str:
    """The words of a drawing without notes, from its beginning: what is read aloud of it."""
    return " ".join(unescape(re.sub("<[^>]*>", " ", "".join(drawing.parts))).split())[:1000]


def _kind(note: str) -> str:
    """Mistakes stand out."""
    return "bad" if note.startswith(("wrong", "error")) else "faint"


def _limited(text: str, title: str) -> str:
    if len(text) > MOST_BYTES:
        raise InputError(
            f"the picture of {title[:80]} would have {len(text):,} bytes; at most {MOST_BYTES:,} are drawn: "
            "show a part of it"
        )
    return text


def page(title: str, figures: Sequence[Figure]) -> str:
    """A whole HTML page that needs no other file."""
    alone = len(figures) == 1 and figures[0].title == title
    body = "".join(figure.html("h1" if alone else "h2") for figure in figures)
    heading = "" if alone else f"<h1>{_words(title)}</h1>"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width, initial-scale=1"><title>{escape(title)}</title><style>{STYLE}'
        "</style></head>"
        f'<body class="spmdsim"><main>{heading}{body}</main></body></html>\n'
    )


#: Class -> the module of this room and the function in it that makes its figure. Nothing is loaded for the table.
DRAWN: dict[str, str] = {
    "spmdsim.core.layout.Mesh": "grid_figures.mesh_figure",
    "spmdsim.core.layout.Layout": "grid_figures.layout_figure",
    "spmdsim.core.tensor.Tensor": "grid_figures.tensor_figure",
    "spmdsim.core.step.Step": "plan_figures.step_figure",
    "spmdsim.redistribution.planner.Plan": "plan_figures.plan_figure",
    "spmdsim.redistribution.ways.way_trial.TunedSteps": "fact_figures.tuned_figure",
    "spmdsim.core.operator.Op": "fact_figures.operator_figure",
    "spmdsim.ops.operators.OperatorFunction": "fact_figures.operator_figure",
    "spmdsim.core.rule.Rule": "fact_figures.rule_figure",
    "spmdsim.core.rule.BoundRule": "fact_figures.bound_figure",
    "spmdsim.core.rule.Strategy": "fact_figures.strategy_figure",
    "spmdsim.core.world.World": "fact_figures.world_figure",
    "spmdsim.nn.module.Module": "fact_figures.module_figure",
    "spmdsim.tensor.rounding.Verdict": "fact_figures.verdict_figure",
    "spmdsim.cost.machine.Machine": "cost_figures.machine_figure",
    "spmdsim.cost.topology.Topology": "cost_figures.topology_figure",
    "spmdsim.cost.prediction.Prediction": "cost_figures.prediction_figure",
    "spmdsim.collectives.schedule.Schedule": "schedule_figures.schedule_figure",
    "spmdsim.collectives.facts.Facts": "schedule_figures.counts_figure",
    "spmdsim.collectives.history.History": "schedule_figures.history_figure",
    "spmdsim.collectives.algorithm.Algorithm": "schedule_figures.algorithm_figure",
    "spmdsim.trace.recorder.Trace": "timeline_figures.trace_figure",
    "spmdsim.simulation.simulation_report.Report": "timeline_figures.report_figure",
    "spmdsim.auto_parallel.search_result.SearchResult": "search_figures.search_figure",
    "spmdsim.auto_parallel.search_result.WhyNot": "search_figures.why_figure",
    "spmdsim.auto_parallel.frontier.TradeOff": "search_figures.trade_off_figure",
}


def figure_of(value: object, **options: Any) -> Figure:
    """The figure of a value that the package returns, or of a list; options are what its kind takes, such as ``shape``.

    >>> from spmdsim.core import Mesh
    >>> figure_of(Mesh((2, 2), ("dp", "tp"))).title
    'mesh dp=2 tp=2: 4 ranks'
    """
    if isinstance(value, (list, tuple)) and value and not hasattr(value, "_fields"):
        return _together(value)
    for kind in type(value).__mro__:
        entry = DRAWN.get(f"{kind.__module__}.{kind.__qualname__}")
        if entry is not None:
            module, _, name = entry.partition(".")
            make: Callable[..., Figure] = getattr(import_module(f"spmdsim.draw.{module}"), name)
            return make(value, **options)
    if not any(kind.__module__.startswith("spmdsim.") for kind in type(value).__mro__):
        raise UsageTypeError(
            f"there is no picture of {short(value, 60)}: show a Mesh, Layout, Tensor, plan, trace, schedule or "
            "another value that spmdsim returned"
        )
    return facts_figure(value)


def _together(values: Sequence[Any]) -> Figure:
    """Several values: trade-offs as one plot, others below each other."""
    names = {f"{type(value).__module__}.{type(value).__qualname__}" for value in values}
    if names == {"spmdsim.auto_parallel.frontier.TradeOff"}:
        from spmdsim.draw.search_figures import frontier_figure

        return frontier_figure(values)
    figures = [figure_of(value) for value in values[:MOST_FIGURES]]
    more = (f"the first {len(figures)} of {len(values)}",) if len(values) > len(figures) else ()
    return stacked(f"{many(len(values), 'value')}", figures, more)


def stacked(title: str, figures: Sequence[Figure], notes: tuple[str, ...] = ()) -> Figure:
    """Several figures below each other as one."""
    parts: list[Part] = []
    for figure in figures:
        head = Canvas()
        for line, words in enumerate((figure.title, *figure.notes)):
            head.text(0, 12 + ROW * line, words, "faint" if line else "title")
        parts += [head, *figure.parts]
    return Figure(title, tuple(parts), notes)


def facts_figure(value: Any) -> Figure:
    """What a value says of itself: its fields, its properties, and its own words."""
    name = type(value).__name__
    rows = [(key, short(fact)) for key, fact in facts_of(value).items()]
    words = "" if str(value) == repr(value) else str(value)
    title = f"{name} {words}" if words and len(words) < 80 and "\n" not in words else name
    notes = tuple(words.splitlines()[:MOST_ROWS]) if words and title == name else ()
    return Figure(title, (fact_rows(rows),) if rows else (), notes)


def facts_of(value: Any) -> dict[str, Any]:
    """The public facts of a value: fields of dataclasses and tuples, attributes of others."""
    if is_dataclass(value):
        names = [f.name for f in fields(value)]
    elif hasattr(value, "_fields"):
        names = list(value._fields)
    else:
        slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
        names = [*getattr(value, "__dict__", ()), *slots]
    return {name: getattr(value, name) for name in names if not name.startswith("_") and hasattr(value, name)}


def short(value: object, most: int = 90) -> str:
    """A value in one line.

    >>> short((1, 2)), short("x" * 100, 10)
    ('1, 2', 'xxxxxxx...')
    """
    if callable(value) and hasattr(value, "__qualname__"):
        text = f"{value.__module__}.{value.__qualname__}"
    elif isinstance(value, (tuple, list, frozenset)):
        some = sorted(value, key=str) if isinstance(value, frozenset) else value
        inner = f"{len(some)} entries" if len(some) > 8 else ", ".join(short(one, 40) for one in some)
        text = f"{{{inner}}}" if isinstance(value, frozenset) else inner or "none"
    elif is_dataclass(value) and isinstance(getattr(value, "name", None), str):
        text = value.name  # type: ignore[union-attr]
    elif isinstance(value, dict):
        text = ", ".join(f"{k}={short(v, 30)}" for k, v in list(value.items())[:8]) or "none"
    elif isinstance(value, float):
        text = f"{value:.6g}"
    else:
        text = str(value)
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 3]}..."


def html_of(value: object, **options: Any) -> str:
    """The figure as a fragment of a page."""
    return figure_of(value, **options).html()


def svg_of(value: object, **options: Any) -> str:
    """The figure as one SVG image."""
    return figure_of(value, **options).svg()


def side_by_side(drawings: Sequence[tuple[str, Canvas]], most: float = 880, gap: float = 24) -> Canvas:
    """Drawings with a line above each, next to each other as far as the width goes."""
    whole, x, y, deepest = Canvas(), 0.0, 0.0, 0.0
    for words, one in drawings:
        wide = max(one.width, width_of(words))
        if x and x + wide > most:
            x, y, deepest = 0.0, y + deepest + gap, 0.0
        if words:
            whole.text(x, y + 12, words, "faint")
        top = y + (ROW if words else 0)
        whole.parts.append(f'<g transform="translate({x:.0f} {top:.0f})">{"".join(one.parts)}</g>')
        whole.reach(x + wide, top + one.height)
        x, deepest = x + wide + gap, max(deepest, top + one.height - y)
    return whole
