"""Line plots on logarithmic axes: for terminals, as SVG, and as PNG where matplotlib is installed."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from itertools import pairwise
from math import ceil, floor, log10
from pathlib import Path

from spmdsim.errors import InputError

#: One letter or sign per line in terminals.
MARKS = "ox+*#@%&=abcdefghijklmn"
#: Colours that people with colour blindness can tell apart (Okabe and Ito), and dashes beyond them.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")
DASHES = ("", "6 3", "2 3")


@dataclass(frozen=True)
class Line:
    """One line: a name and its points, all greater than 0."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Plot:
    """What to draw.

    Attributes:
        title: above the plot.
        x_label: below the x axis.
        y_label: at the y axis.
        lines: the lines; the legend follows their order.
        x_marks: vertical marks with a label, such as crossovers.
    """

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    x_marks: tuple[tuple[float, str], ...] = ()

    def ranges(self) -> tuple[float, float, float, float]:
        """Smallest and largest x and y, as powers of ten.

        Raises:
            InputError: no point to draw, or one that a logarithmic axis cannot show.
        """
        xs = [x for line in self.lines for x, _ in line.points]
        ys = [y for line in self.lines for _, y in line.points]
        if not xs:
            raise InputError("there is nothing to plot: no line has a point")
        if min(xs) <= 0 or min(ys) <= 0:
            raise InputError("logarithmic axes show numbers greater than 0 only")
        low_x, high_x, low_y, high_y = (log10(v) for v in (min(xs), max(xs), min(ys), max(ys)))
        return low_x, max(high_x, low_x + 1e-9), low_y, max(high_y, low_y + 1e-9)


def terminal_plot(plot: Plot, width: int = 72, height: int = 20) -> list[str]:
    """The plot as lines of plain text.

    Where lines meet, the sign of the later one in the legend is seen.

    >>> lines = terminal_plot(Plot("t", "x", "y", (Line("a", ((1, 1), (100, 100))),)), 20, 5)
    >>> lines[1].strip().startswith("100")
    True
    """
    low_x, high_x, low_y, high_y = plot.ranges()
    grid = [[" "] * width for _ in range(height)]

    def column(x: float) -> int:
        return round((log10(x) - low_x) / (high_x - low_x) * (width - 1))

    def row(y: float) -> int:
        return round((high_y - log10(y)) / (high_y - low_y) * (height - 1))

    for x, _ in plot.x_marks:
        if low_x <= log10(x) <= high_x:
            for cells_of_row in grid:
                cells_of_row[column(x)] = ":"
    for line, mark in zip(plot.lines, MARKS * len(plot.lines)):
        cells = [(column(x), row(y)) for x, y in sorted(line.points)]
        for (x0, y0), (x1, y1) in pairwise(cells):
            for step in range(1, steps := max(abs(x1 - x0), abs(y1 - y0), 1)):
                at = round(x0 + (x1 - x0) * step / steps), round(y0 + (y1 - y0) * step / steps)
                if grid[at[1]][at[0]] in " :":
                    grid[at[1]][at[0]] = "."
        for x_at, y_at in cells:
            grid[y_at][x_at] = mark
    labels = {0: 10**high_y, height // 2: 10 ** ((low_y + high_y) / 2), height - 1: 10**low_y}
    side = max(len(short(value)) for value in labels.values())
    text = [plot.title]
    for index, cells_of_row in enumerate(grid):
        label = short(labels[index]) if index in labels else ""
        text.append(f"{label:>{side}} |{''.join(cells_of_row).rstrip()}")
    text.append(" " * side + " +" + "-" * width)
    ends = short(10**low_x), short(10**high_x)
    middle = short(10 ** ((low_x + high_x) / 2)).center(width - len(ends[0]) - len(ends[1]))
    text.append(" " * (side + 2) + ends[0] + middle + ends[1])
    text.append(" " * (side + 2) + plot.x_label + f"   (up: {plot.y_label})")
    text += [f"  {mark} {line.name}" for line, mark in zip(plot.lines, MARKS * len(plot.lines))]
    text += [f"  : {short(x)}  {label}" for x, label in plot.x_marks]
    return text


def short(value: float) -> str:
    """A number in few characters.

    >>> [short(v) for v in (0.00125, 3, 1500, 2.5e6, 4e-7)]
    ['1.25m', '3', '1.5k', '2.5M', '400n']
    """
    for factor, letter in (
        (1e9, "G"),
        (1e6, "M"),
        (1e3, "k"),
        (1, ""),
        (1e-3, "m"),
        (1e-6, "u"),
        (1e-9, "n"),
    ):
        if abs(value) >= factor * 0.9995:
            return f"{value / factor:.3g}{letter}"
    return f"{value:.3g}"


def svg_plot(plot: Plot, width: int = 760, height: int = 440) -> str:
    """The plot as one SVG image without scripts; points tell their values when pointed at."""
    low_x, high_x, low_y, high_y = plot.ranges()
    left, right, top, bottom = 76, 210, 34, 52
    inner_w, inner_h = width - left - right, height - top - bottom

    def px(x: float) -> float:
        return left + (log10(x) - low_x) / (high_x - low_x) * inner_w

    def py(y: float) -> float:
        return top + (high_y - log10(y)) / (high_y - low_y) * inner_h

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="12" role="img" aria-label="{escape(plot.title, True)}">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{left}" y="20" font-size="14">{escape(plot.title)}</text>',
    ]
    for x in _ticks(low_x, high_x):
        parts.append(f'<path d="M{px(x):.1f} {top}V{top + inner_h}" stroke="#e5e5e5"/>')
        parts.append(f'<text x="{px(x):.1f}" y="{top + inner_h + 16}" text-anchor="middle">{short(x)}</text>')
    for y in _ticks(low_y, high_y):
        parts.append(f'<path d="M{left} {py(y):.1f}H{left + inner_w}" stroke="#e5e5e5"/>')
        parts.append(f'<text x="{left - 6}" y="{py(y) + 4:.1f}" text-anchor="end">{short(y)}</text>')
    for x, label in plot.x_marks:
        if low_x <= log10(x) <= high_x:
            parts.append(
                f'<path d="M{px(x):.1f} {top}V{top + inner_h}" stroke="#555" stroke-dasharray="2 4">'
                f"<title>{escape(f'{short(x)}: {label}')}</title></path>"
            )
    parts.append(
        f'<rect x="{left}" y="{top}" width="{inner_w}" height="{inner_h}" fill="none" stroke="#333"/>'
    )
    middle = top + inner_h / 2
    parts.append(
        f'<text x="{left + inner_w / 2}" y="{height - 12}" text-anchor="middle">{escape(plot.x_label)}</text>'
    )
    parts.append(
        f'<text transform="translate(16 {middle}) rotate(-90)" text-anchor="middle">{escape(plot.y_label)}</text>'
    )
    for index, line in enumerate(plot.lines):
        colour, dash = COLOURS[index % len(COLOURS)], DASHES[index // len(COLOURS) % len(DASHES)]
        dots = f' stroke-dasharray="{dash}"' if dash else ""
        path = " ".join(f"{px(x):.1f},{py(y):.1f}" for x, y in sorted(line.points))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"{dots}/>')
        for x, y in line.points:
            words = escape(f"{line.name}: {short(x)}, {short(y)}")
            parts.append(
                f'<circle cx="{px(x):.1f}" cy="{py(y):.1f}" r="3" fill="{colour}"><title>{words}</title></circle>'
            )
        legend_y = top + 8 + 18 * index
        parts.append(
            f'<path d="M{width - right + 14} {legend_y}h22" stroke="{colour}" stroke-width="2"{dots}/>'
            f'<text x="{width - right + 42}" y="{legend_y + 4}">{escape(line.name)}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _ticks(low: float, high: float) -> list[float]:
    """Powers of ten within a range, more finely where there are few, more coarsely where there are many."""
    decades = [10.0**k for k in range(ceil(low - 1e-9), floor(high + 1e-9) + 1)]
    if len(decades) >= 3:
        return decades[:: ceil(len(decades) / 10)]
    fine = [m * 10.0**k for k in range(floor(low), ceil(high) + 1) for m in (1, 2, 5)]
    return [v for v in fine if low - 1e-9 <= log10(v) <= high + 1e-9]


def save_png(plot: Plot, path: str | Path) -> None:
    """The plot as a PNG file.

    Raises:
        InputError: matplotlib is missing, or the file cannot be written.
    """
    plot.ranges()
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError(
            "PNG needs matplotlib, which is not installed: pip install 'spmdsim[plot]'; SVG needs nothing"
        ) from None
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    for index, line in enumerate(plot.lines):
        axes.loglog(
            *zip(*sorted(line.points)), "o-", ms=4, color=COLOURS[index % len(COLOURS)], label=line.name
        )
    for x, _ in plot.x_marks:
        axes.axvline(x, color="#555555", linestyle=":", linewidth=1)
    axes.set(title=plot.title, xlabel=plot.x_label, ylabel=plot.y_label)
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(fontsize="small")
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise InputError(f"cannot write {str(path)!r}: {error.strerror}") from None
