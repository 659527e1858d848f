"""Figures: one picture of a value, as text, as one SVG image, and as HTML for notebooks and pages.

A figure has a title and parts: drawings and tables. The table ``DRAWN`` names the function that makes the figure of each
class. A value of another class is shown by its public fields.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from html import escape, unescape
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

from spmdsim.errors import InputError, UsageTypeError, many
from spmdsim.figures.canvas import MOST_BYTES, ROW, STYLE, Canvas, svg, width_of
from spmdsim.pictured import ShortRepr
from spmdsim.tables import Table, escape_words, join_text, strip_lines

if TYPE_CHECKING:
    from rich.text import Text

GAP = 14
MOST_FIGURES = 16
MOST_LINES = 64
"""Lines of a value's own text that its figure repeats."""
WIDTH = 100
"""Characters of a line of text, unless a terminal is narrower."""


def fact_rows(rows: Iterable[tuple[str, str]], key: str = "fact") -> Table:
    """Return a table of facts with their values."""
    return Table((key, "value"), tuple(rows))


Part: TypeAlias = "Canvas | Table"
"""A part of an image or a page."""
Words: TypeAlias = "str | Table | Text"
"""A part of a text: lines, a table, or lines with colours."""


@dataclass(frozen=True, repr=False)
class Figure(ShortRepr):
    """The picture of a value.

    Attributes:
        title: its first line.
        parts: drawings and tables of the image and the page.
        notes: lines under the title.
        written: a function of the width of a line in characters that returns the parts of the text. None: the title, the
            notes and the tables.
    """

    title: str
    parts: tuple[Part, ...] = ()
    notes: tuple[str, ...] = ()
    written: Callable[[int], Iterable[Words]] | None = None
    most_rows: int = 64  # of a table

    def words(self, width: int = WIDTH) -> list[Words]:
        """Return the parts of the text for lines of ``width`` characters."""
        if self.written is not None:
            return [*self.written(width)]
        tables = [part.shorten(self.most_rows) for part in self.parts if isinstance(part, Table)]
        return [self.title, *self.notes, *tables]

    @property
    def text(self) -> str:
        """The figure as text without colours."""
        return strip_lines(
            join_text(part if isinstance(part, (str, Table)) else part.plain for part in self.words())
        )

    @property
    def svg(self) -> str:
        """The figure as one SVG image: all parts below each other."""
        image, y = Canvas(), 12.0
        for k, line in enumerate((self.title, *self.notes)):
            image.text(0, y, line, _kind(line) if k else "title")
            y += ROW
        y -= 4
        for part in self.parts:
            if isinstance(part, Table):
                image.table(part.shorten(self.most_rows), y)
            else:
                image.parts.append(f'<g transform="translate(0 {y:.0f})">{"".join(part.parts)}</g>')
                image.reach(part.width, y + part.height)
            y = image.height + GAP
        return _limited(svg(image, self.title, told="; ".join(self.notes) or _read(image)), self.title)

    @property
    def html(self) -> str:
        """The figure as a fragment of a page: drawings as images that scroll, tables as tables."""
        return self.fragment("h4")

    def fragment(self, heading: str) -> str:
        """Return the HTML with a title of the given element, such as ``h2``."""
        lines = [f"<{heading}>{escape_words(self.title)}</{heading}>"]
        lines += [f'<p class="{_kind(line)}">{escape_words(line)}</p>' for line in self.notes]
        for part in self.parts:
            inner = (
                part.shorten(self.most_rows).html() if isinstance(part, Table) else svg(part, self.title, 4)
            )
            lines.append(f'<div class="scroll">{inner}</div>')
        return _limited(f'<div class="spmdsim"><style>{STYLE}</style>{"".join(lines)}</div>', self.title)


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
    body = "".join(one.fragment("h1" if alone else "h2") for one in figures)
    heading = "" if alone else f"<h1>{escape_words(title)}</h1>"
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
    "spmdsim.core.tensor.PlainTensor": "grid_figures.tensor_figure",
    "spmdsim.core.step.Step": "plan_figures.step_figure",
    "spmdsim.redistribution.plans.planner.Plan": "plan_figures.plan_figure",
    "spmdsim.redistribution.implementations.trial.TunedSteps": "fact_figures.tuned_figure",
    "spmdsim.core.operator.Op": "fact_figures.operator_figure",
    "spmdsim.arrays.ops.operators.OperatorFunction": "fact_figures.operator_figure",
    "spmdsim.core.rule.Rule": "fact_figures.rule_figure",
    "spmdsim.core.rule.BoundRule": "fact_figures.bound_figure",
    "spmdsim.core.rule.Strategy": "fact_figures.strategy_figure",
    "spmdsim.core.world.AbstractWorld": "fact_figures.world_figure",
    "spmdsim.nn.module.Module": "fact_figures.module_figure",
    "spmdsim.arrays.rounding.Verdict": "fact_figures.verdict_figure",
    "spmdsim.cost.machine.Machine": "cost_figures.machine_figure",
    "spmdsim.cost.topology.Topology": "cost_figures.topology_figure",
    "spmdsim.cost.prediction.Prediction": "cost_figures.prediction_figure",
    "spmdsim.collectives.schedule.Schedule": "schedule_figures.schedule_figure",
    "spmdsim.collectives.facts.Facts": "schedule_figures.counts_figure",
    "spmdsim.collectives.history.History": "schedule_figures.history_figure",
    "spmdsim.collectives.algorithm.Algorithm": "schedule_figures.algorithm_figure",
    "spmdsim.worlds.trace.recorder.Trace": "timeline_figures.trace_figure",
    "spmdsim.simulation.simulation_report.Report": "timeline_figures.report_figure",
    "spmdsim.auto_parallel.search_result.SearchResult": "search_figures.search_figure",
    "spmdsim.auto_parallel.search_result.WhyNot": "search_figures.why_figure",
    "spmdsim.auto_parallel.frontier.TradeOff": "search_figures.trade_off_figure",
}


def figure(value: object, shape: Sequence[int] | None = None) -> Figure:
    """Return the figure of a value that the package returns, or of a list of such values.

    Args:
        value: the value.
        shape: a global shape, if the value is a layout: the figure shows the tensor with its shards.

    Raises:
        UsageTypeError: If the value is not one of the package's.
        InputError: If a shape is given for another value than a layout.

    >>> from spmdsim.core import Mesh
    >>> print(figure(Mesh((2, 2), ("dp", "tp"))).text)
    dp=2 tp=2
    rank  tp=0  tp=1
    dp=0  0     1
    dp=1  2     3
    """
    from spmdsim.core import Layout

    if shape is not None and not isinstance(value, Layout):
        raise InputError(f"a shape goes with a layout, but {type(value).__name__} was given with {shape}")
    if isinstance(value, Figure):
        return value
    if isinstance(value, (list, tuple)) and value and not hasattr(value, "_fields"):
        return _together(value)
    classes = type(value).__mro__
    names = (DRAWN.get(f"{kind.__module__}.{kind.__qualname__}") for kind in classes)
    function = next(filter(None, names), "figures.facts_figure")
    if not any(kind.__module__.startswith("spmdsim.") for kind in classes):
        raise UsageTypeError(
            f"there is no picture of {short(value, 60)}: show a Mesh, Layout, Tensor, plan, trace, schedule or "
            "another value that spmdsim returned"
        )
    module, _, name = function.partition(".")
    make: Callable[..., Figure] = getattr(import_module(f"spmdsim.figures.{module}"), name)
    drawn = make(value) if shape is None else make(value, shape)
    return drawn if drawn.written else replace(drawn, written=partial(_own_words, value, drawn))


def _own_words(value: object, drawn: Figure, width: int) -> list[Words]:
    """Return the value's own text if that has several lines, else the figure's."""
    text = str(value)
    return [text] if "\n" in text and text != repr(value) else drawn.words(width)


def _together(values: Sequence[Any]) -> Figure:
    """Several values: trade-offs as one plot, others below each other."""
    names = {f"{type(value).__module__}.{type(value).__qualname__}" for value in values}
    if names == {"spmdsim.auto_parallel.frontier.TradeOff"}:
        from spmdsim.figures.search_figures import frontier_figure

        return frontier_figure(values)
    figures = [figure(value) for value in values[:MOST_FIGURES]]
    more = (f"the first {len(figures)} of {len(values)}",) if len(values) > len(figures) else ()
    return stacked(f"{many(len(values), 'value')}", figures, more)


def stacked(title: str, figures: Sequence[Figure], notes: tuple[str, ...] = ()) -> Figure:
    """Several figures below each other as one."""
    parts: list[Part] = []
    for one in figures:
        head = Canvas()
        for line, words in enumerate((one.title, *one.notes)):
            head.text(0, 12 + ROW * line, words, "faint" if line else "title")
        parts += [head, *one.parts]
    return Figure(
        title,
        tuple(parts),
        notes,
        lambda width: [title, *notes, *chain.from_iterable(one.words(width) for one in figures)],
    )


def facts_figure(value: Any) -> Figure:
    """What a value says of itself: its fields, its properties, and its own words."""
    name = type(value).__name__
    rows = [(key, short(fact)) for key, fact in facts_of(value).items()]
    words = "" if str(value) == repr(value) else str(value)
    title = f"{name} {words}" if words and len(words) < 80 and "\n" not in words else name
    notes = tuple(words.splitlines()[:MOST_LINES]) if words and title == name else ()
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
