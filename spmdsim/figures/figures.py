"""Make figures of values: as text, as one SVG image, and as HTML for notebooks and pages.

A :class:`Figure` has a title and parts: drawings and tables. :func:`figure` looks up the function for the class of a
value in ``DRAWN``. The figure of a value of another class is a table of its public fields.
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
from spmdsim.figures.canvas import MOST_CHARACTERS, ROW, STYLE, Canvas, svg, width_of
from spmdsim.pictured import ShortRepr
from spmdsim.tables import Table, escape_words, join_text, strip_lines
from spmdsim.wrong_calls import explained

if TYPE_CHECKING:
    from rich.text import Text

GAP = 14
MOST_FIGURES = 16
MOST_LINES = 64
"""Largest number of lines of a value's text in its figure."""
WIDTH = 100
"""Largest number of characters of a line of text."""


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
        title: the first line.
        parts: drawings and tables of the image and the page.
        notes: lines under the title.
        written: function of the line width in characters that returns the parts of the text; None for title, notes
            and tables.
        most_rows: largest number of rows of a table.
    """

    title: str
    parts: tuple[Part, ...] = ()
    notes: tuple[str, ...] = ()
    written: Callable[[int], Iterable[Words]] | None = None
    most_rows: int = 64

    def words(self, width: int = WIDTH) -> list[Words]:
        """Return the parts of the text for lines of ``width`` characters."""
        if self.written is not None:
            return [*self.written(width)]
        tables = [item.shorten(self.most_rows) for item in self.parts if isinstance(item, Table)]
        return [self.title, *self.notes, *tables]

    @property
    def text(self) -> str:
        """The figure as text without colours."""
        return strip_lines(
            join_text(item if isinstance(item, (str, Table)) else item.plain for item in self.words())
        )

    @property
    def svg(self) -> str:
        """The figure as one SVG image, with title, notes and all parts below each other.

        Tables have at most ``most_rows`` rows. Screen readers get the notes, or without notes the words of the drawing.

        Raises:
            InputError: If the SVG has more than ``MOST_CHARACTERS`` characters.
        """
        image, y = Canvas(), 12.0
        for k, line in enumerate((self.title, *self.notes)):
            image.text(0, y, line, _kind(line) if k else "title")
            y += ROW
        y -= 4
        for item in self.parts:
            if isinstance(item, Table):
                image.table(item.shorten(self.most_rows), y)
            else:
                image.parts.append(f'<g transform="translate(0 {y:.0f})">{"".join(item.parts)}</g>')
                image.reach(item.width, y + item.height)
            y = image.height + GAP
        return _check_size(
            svg(image, self.title, description="; ".join(self.notes) or _spoken_words(image)), self.title
        )

    @property
    def html(self) -> str:
        """The figure as an HTML fragment: drawings as images that scroll, tables as tables."""
        return self.fragment("h4")

    def fragment(self, heading: str) -> str:
        """Return the figure as HTML with its style: title, notes, drawings and tables.

        The text is one ``<div>`` element. Drawings are SVG images that scroll. Tables have at most ``most_rows`` rows.

        Args:
            heading: the HTML element of the title, such as ``h2``.

        Raises:
            InputError: If the HTML has more than ``MOST_CHARACTERS`` characters.
        """
        lines = [f"<{heading}>{escape_words(self.title)}</{heading}>"]
        lines += [f'<p class="{_kind(line)}">{escape_words(line)}</p>' for line in self.notes]
        for item in self.parts:
            inner = (
                item.shorten(self.most_rows).html() if isinstance(item, Table) else svg(item, self.title, 4)
            )
            lines.append(f'<div class="scroll">{inner}</div>')
        return _check_size(f'<div class="spmdsim"><style>{STYLE}</style>{"".join(lines)}</div>', self.title)


def _spoken_words(drawing: Canvas) -> str:
    """Return the words of a drawing, up to 1000 characters, for screen readers."""
    return " ".join(unescape(re.sub("<[^>]*>", " ", "".join(drawing.parts))).split())[:1000]


def _kind(note: str) -> str:
    """Return the CSS class of a note: mistakes are "bad", others "faint"."""
    return "bad" if note.startswith(("wrong", "error")) else "faint"


def _check_size(text: str, title: str) -> str:
    """Return the picture ``text`` unchanged, unless it is too large.

    Raises:
        InputError: If it has more than ``MOST_CHARACTERS`` (1,048,576) characters; ``title`` names the picture in the
            error, with at most 80 characters.
    """
    if len(text) > MOST_CHARACTERS:
        raise InputError(
            f"the picture of {title[:80]} must have at most {MOST_CHARACTERS:,} characters, got {len(text):,}; "
            "show a part of it"
        )
    return text


def page(title: str, figures: Sequence[Figure]) -> str:
    """Return an HTML page of figures below each other, which needs no other file.

    The text is a complete document. If the only figure has the title of the page, the title appears once.

    Raises:
        InputError: If a figure has more than ``MOST_CHARACTERS`` characters.
    """
    is_titled = len(figures) == 1 and figures[0].title == title
    body = "".join(figure_of_page.fragment("h1" if is_titled else "h2") for figure_of_page in figures)
    heading = "" if is_titled else f"<h1>{escape_words(title)}</h1>"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width, initial-scale=1"><title>{escape(title)}</title><style>{STYLE}'
        "</style></head>"
        f'<body class="spmdsim"><main>{heading}{body}</main></body></html>\n'
    )


#: For each class, the module of this package and the function that makes its figure; both are imported on first use.
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
    "spmdsim.cost.node_map.NodeMap": "cost_figures.node_map_figure",
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


@explained
def figure(value: object, shape: Sequence[int] | None = None) -> Figure:
    """Return the figure of a value that the package returns, or of a list of such values.

    Args:
        value: the value; or a list or tuple of values, of which at most 16 are drawn.
        shape: a global shape, if the value is a layout; the figure then shows the tensor with its shards. None for all
            other values.

    Raises:
        UsageTypeError: If the value does not belong to the package.
        InputError: If a shape is passed with a value that is not a layout.
        LayoutError: If the layout does not fit the shape.

    >>> from spmdsim.core import Mesh
    >>> print(figure(Mesh((2, 2), ("dp", "tp"))).text)
    dp=2 tp=2
    rank  tp=0  tp=1
    dp=0  0     1
    dp=1  2     3
    """
    from spmdsim.core import Layout

    if shape is not None and not hasattr(shape, "__len__"):
        raise UsageTypeError(f"figure: shape must be a tuple of sizes, but got {shape!r:.60}")
    if shape is not None and not isinstance(value, Layout):
        raise InputError(
            f"figure: value must be a layout if shape is passed, got {type(value).__name__} with {shape}"
        )
    if isinstance(value, Figure):
        return value
    if isinstance(value, (list, tuple)) and value and not hasattr(value, "_fields"):
        return _figure_of_several(value)
    classes = type(value).__mro__
    names = (DRAWN.get(f"{kind.__module__}.{kind.__qualname__}") for kind in classes)
    function = next(filter(None, names), "figures.facts_figure")
    if not any(kind.__module__.startswith("spmdsim.") for kind in classes):
        raise UsageTypeError(
            f"there is no picture of {shorten_value(value, 60)}: show a Mesh, Layout, Tensor, plan, trace, schedule or "
            "another value that spmdsim returned"
        )
    draw = _load_drawing(function)
    picture = draw(value) if shape is None else draw(value, shape)
    return picture if picture.written else replace(picture, written=partial(_value_words, value, picture))


def _value_words(value: object, drawn: Figure, width: int) -> list[Words]:
    """Return the value's own text if it has several lines and is no repr, else the text of the figure."""
    text = str(value)
    return [text] if "\n" in text and text != repr(value) else drawn.words(width)


def _figure_of_several(values: Sequence[Any]) -> Figure:
    """Draw several values below each other; trade-offs of a search are one plot.

    At most ``MOST_FIGURES`` values are drawn; a note has the number of all.
    """
    names = {f"{type(value).__module__}.{type(value).__qualname__}" for value in values}
    if names == {"spmdsim.auto_parallel.frontier.TradeOff"}:
        return _load_drawing("search_figures.frontier_figure")(values)
    figures = [figure(value) for value in values[:MOST_FIGURES]]
    notes = (f"the first {len(figures)} of {len(values)}",) if len(values) > len(figures) else ()
    return stacked(f"{many(len(values), 'value')}", figures, notes)


def _load_drawing(name: str) -> Callable[..., Figure]:
    """Return a function of this package that makes figures, such as ``"grid_figures.mesh_figure"``."""
    module, _, function_name = name.partition(".")
    function: Callable[..., Figure] = getattr(import_module(f"spmdsim.figures.{module}"), function_name)
    return function


def stacked(title: str, figures: Sequence[Figure], notes: tuple[str, ...] = ()) -> Figure:
    """Combine several figures to one, below each other, each with its title and notes.

    The figures' own limits of table rows (``most_rows``) apply to the text only; images and pages have the default limit.

    Args:
        title: title of the combined figure.
        figures: the figures.
        notes: lines below the title of the combined figure.
    """
    parts: list[Part] = []
    for item in figures:
        heading = Canvas()
        for line, words in enumerate((item.title, *item.notes)):
            heading.text(0, 12 + ROW * line, words, "faint" if line else "title")
        parts += [heading, *item.parts]
    return Figure(
        title,
        tuple(parts),
        notes,
        written=lambda width: [title, *notes, *chain.from_iterable(item.words(width) for item in figures)],
    )


def facts_figure(value: Any) -> Figure:
    """Draw a table of the public fields of a value; without fields there is no table.

    The value's text is part of the title if it is one line of less than 80 characters. Otherwise it is the notes, of at
    most ``MOST_LINES`` lines. A text that equals ``repr(value)`` is left out.

    Args:
        value: any object of the package.
    """
    name = type(value).__name__
    rows = [(key, shorten_value(fact)) for key, fact in list_fields(value).items()]
    words = "" if str(value) == repr(value) else str(value)
    title = f"{name} {words}" if words and len(words) < 80 and "\n" not in words else name
    notes = tuple(words.splitlines()[:MOST_LINES]) if words and title == name else ()
    return Figure(title, (fact_rows(rows),) if rows else (), notes)


def list_fields(value: Any) -> dict[str, Any]:
    """Return the public fields of a dataclass or named tuple, or the attributes of a value.

    Args:
        value: any object. Attributes are those of ``__dict__`` and of its classes' ``__slots__``; properties are not read.

    Returns:
        The values by name, without names that begin with "_" and attributes that are not set. {} if there are none.
    """
    if is_dataclass(value):
        names = [f.name for f in fields(value)]
    elif hasattr(value, "_fields"):
        names = list(value._fields)
    else:
        slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
        names = [*getattr(value, "__dict__", ()), *slots]
    return {name: getattr(value, name) for name in names if not name.startswith("_") and hasattr(value, name)}


def shorten_value(value: object, most: int = 90) -> str:
    """Return a value as one line of at most ``most`` characters.

    * A function, or a dataclass with a name: its name.
    * A list, tuple or set of more than 8 entries: "9 entries".
    * A dict: its first 8 entries, such as "a=1, b=2".
    * A float: 6 digits.

    Blanks and line breaks become one blank. A longer text is cut, and ends with "...".

    >>> shorten_value((1, 2)), shorten_value("x" * 100, 10)
    ('1, 2', 'xxxxxxx...')
    """
    if callable(value) and hasattr(value, "__qualname__"):
        text = f"{value.__module__}.{value.__qualname__}"
    elif isinstance(value, (tuple, list, frozenset)):
        items = sorted(value, key=str) if isinstance(value, frozenset) else value
        inner = (
            f"{len(items)} entries"
            if len(items) > 8
            else ", ".join(shorten_value(item, 40) for item in items)
        )
        text = f"{{{inner}}}" if isinstance(value, frozenset) else inner or "none"
    elif is_dataclass(value) and isinstance(getattr(value, "name", None), str):
        text = value.name  # type: ignore[union-attr]
    elif isinstance(value, dict):
        text = ", ".join(f"{k}={shorten_value(v, 30)}" for k, v in list(value.items())[:8]) or "none"
    elif isinstance(value, float):
        text = f"{value:.6g}"
    else:
        text = str(value)
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 3]}..."


def side_by_side(drawings: Sequence[tuple[str, Canvas]], most: float = 880, gap: float = 24) -> Canvas:
    """Arrange drawings in rows from left to right, like words; return them as one drawing.

    Args:
        drawings: pairs of a line of words, which is written above the drawing and may be "", and the drawing.
        most: largest width of a row, in pixels; a wider drawing has a row of its own.
        gap: distance between drawings, in pixels.
    """
    canvas, x, y, row_height = Canvas(), 0.0, 0.0, 0.0
    for words, drawing in drawings:
        width = max(drawing.width, width_of(words))
        if x and x + width > most:
            x, y, row_height = 0.0, y + row_height + gap, 0.0
        if words:
            canvas.text(x, y + 12, words, "faint")
        top = y + (ROW if words else 0)
        canvas.parts.append(f'<g transform="translate({x:.0f} {top:.0f})">{"".join(drawing.parts)}</g>')
        canvas.reach(x + width, top + drawing.height)
        x, row_height = x + width + gap, max(row_height, top + drawing.height - y)
    return canvas
