"""Draw line plots with logarithmic axes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log2, log10
from typing import TypeAlias

from spmdsim.errors import InputError
from spmdsim.figures.canvas import Canvas, ink_of, width_of
from spmdsim.redistribution.plans.plan_table import bytes_text, seconds_text

Box: TypeAlias = "tuple[float, float, float, float]"
"""Left, upper, right and lower edge."""

#: The label of an axis of seconds, which are written with their unit.
TIME = "time"
#: Dashes of the lines, so that lines on top of each other stay visible.
DASHES = ("", "8 4", "3 3", "10 3 2 3", "1 4")


@dataclass(frozen=True)
class Line:
    """Line of a plot: a name and its points, whose coordinates are greater than 0."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Plot:
    """The content of a plot.

    Attributes:
        title: the title.
        x_label: label of the axis. :data:`TIME` is in seconds; a label with the word ``bytes`` is in bytes.
        y_label: label of the other axis.
        lines: the lines.
        x_marks: positions and labels of vertical lines, such as crossovers.
        undrawn: names of lines that were left out.
        first_ink: number of the first line's colour, if other parts of the picture use the colours before it.
    """

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    x_marks: tuple[tuple[float, str], ...] = ()
    undrawn: tuple[str, ...] = ()
    first_ink: int = 0

    @property
    def undrawn_words(self) -> str:
        """A sentence about the lines that were left out; empty if there are none."""
        drawn = f"drawn are the {len(self.lines)} fastest; not drawn:"
        return f"{drawn} {', '.join(self.undrawn)}" if self.undrawn else ""

    def ranges(self) -> tuple[float, float, float, float]:
        """Return smallest x, largest x, smallest y and largest y, as decimal logarithms.

        Raises:
            InputError: If there is no point, or a number is not above 0.
        """
        xs = [x for line in self.lines for x, _ in line.points]
        ys = [y for line in self.lines for _, y in line.points]
        if not xs:
            raise InputError("a plot must have at least one point, got none")
        if min(xs) <= 0 or min(ys) <= 0:
            raise InputError("numbers on logarithmic axes must be above 0")
        low_x, high_x, low_y, high_y = (log10(v) for v in (min(xs), max(xs), min(ys), max(ys)))
        return low_x, max(high_x, low_x + 1e-9), low_y, max(high_y, low_y + 1e-9)


def _number_format(label: str) -> Callable[[float], str]:
    """Return the function that writes the numbers of an axis."""
    if "bytes" in label.split(" "):
        return bytes_text
    return seconds_text if label == TIME else format_number


def format_number(value: float) -> str:
    """Return a number with three digits and a unit prefix.

    >>> [format_number(v) for v in (0.00125, 3, 1500, 2.5e6, 4e-7)]
    ['1.25m', '3', '1.5k', '2.5M', '400n']
    """
    for factor, letter in zip((1e9, 1e6, 1e3, 1, 1e-3, 1e-6, 1e-9), ("G", "M", "k", "", "m", "u", "n")):
        if abs(value) >= factor * 0.9995:
            return f"{value / factor:.3g}{letter}"
    return f"{value:.3g}"


def plot_canvas(plot: Plot, width: int = 760, height: int = 440) -> Canvas:
    """Draw a plot; a pointer on a point shows its values.

    Each line has its own dashes, so that lines on top of each other stay visible.
    """
    low_x, high_x, low_y, high_y = plot.ranges()  # padded, so that a plot of one point has an extent
    padding_x, padding_y = max(0.03 * (high_x - low_x), 0.01), max(0.05 * (high_y - low_y), 0.01)
    low_x, high_x, low_y, high_y = (
        low_x - padding_x,
        high_x + padding_x,
        low_y - padding_y,
        high_y + padding_y,
    )
    longest = max(width_of(words) for words in [line.name for line in plot.lines] + [plot.title[:24]])
    left, right, top, bottom = 66, int(longest) + 56, 30, 44
    inner_w, inner_h = max(width - left - right, 240), height - top - bottom
    out, x_text, y_text = Canvas(), _number_format(plot.x_label), _number_format(plot.y_label)

    def px(x: float) -> float:
        return left + (log10(x) - low_x) / (high_x - low_x) * inner_w

    def py(y: float) -> float:
        return top + (high_y - log10(y)) / (high_y - low_y) * inner_h

    out.text(left, 14, plot.title)
    for x in _ticks(low_x, high_x, plot.x_label):
        out.line(px(x), top, px(x), top + inner_h)
        out.text(px(x), top + inner_h + 16, x_text(x), anchor="middle")
    for y in _ticks(low_y, high_y, plot.y_label):
        out.line(left, py(y), left + inner_w, py(y))
        out.text(left - 6, py(y) + 4, y_text(y), anchor="end")
    for x, label in plot.x_marks:
        if low_x <= log10(x) <= high_x:
            ends = px(x), top, px(x), top + inner_h
            out.line(*ends, "edge", ' stroke-dasharray="2 4"', f"{x_text(x)}: {label}")
    for x1, y1, x2, y2 in ((0, 0, 1, 0), (0, 1, 1, 1), (0, 0, 0, 1), (1, 0, 1, 1)):
        out.line(left + x1 * inner_w, top + y1 * inner_h, left + x2 * inner_w, top + y2 * inner_h, "edge")
    out.text(left + inner_w / 2, top + inner_h + 34, plot.x_label, anchor="middle")
    for index, (x, label) in enumerate(plot.x_marks):  # a legend, for readers without a pointer
        y = top + inner_h + 54 + 18 * index
        out.line(left + 3, y - 10, left + 3, y + 2, "edge", ' stroke-dasharray="2 4"')
        out.text(left + 12, y, f"{x_text(x)}: {label}", "faint")
    out.parts.append(
        f'<text transform="translate(10 {top + inner_h / 2:.0f}) rotate(-90)" text-anchor="middle">'
        f"{escape(plot.y_label)}</text>"
    )
    used_boxes: list[Box] = []
    for index, line in enumerate(plot.lines, plot.first_ink):
        points = [(px(x), py(y), x, y) for x, y in sorted(line.points)]
        used_boxes += [(x - 5, y - 5, x + 5, y + 5) for x, y, _, _ in points]
        pointer_text = [f"{line.name}: {x_text(x)}, {y_text(y)}" for _, _, x, y in points]
        _draw_line(out, index, [*zip(points, pointer_text)])
    for line in plot.lines:
        if len(line.points) == 1:  # a single point: write its name beside it, if no other words are there
            (x, y), wide = (px(line.points[0][0]), py(line.points[0][1])), width_of(line.name)
            box = _free_box(x, y, wide, used_boxes, (left, top, left + inner_w, top + inner_h))
            if box is not None:
                used_boxes.append(box)
                out.text(box[0], box[3] - 4, line.name)
    for index, line in enumerate(plot.lines):
        y = top + 8 + 18 * index
        _draw_sample(out, plot.first_ink + index, left + inner_w + 14, y)
        out.text(left + inner_w + 42, y + 4, line.name)
    return out


def _draw_line(out: Canvas, index: int, points: list[tuple[tuple[float, ...], str]]) -> None:
    """Draw line number ``index`` through points, with a marker at each point.

    Args:
        out: the canvas.
        index: number of the line in the plot, which selects the colour.
        points: ``((x, y), text)`` of each point, in SVG units; more coordinates are ignored. The text is shown under
            the mouse.
    """
    path = " ".join(f"{x:.1f},{y:.1f}" for (x, y, *_), _ in points)
    out.parts.append(f'<polyline points="{path}" fill="none" {_stroke(index)}/>')
    for (x, y, *_), pointer_text in points:
        out.parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{ink_of(index)}" stroke="var(--ground)">'
            f"<title>{escape(pointer_text)}</title></circle>"
        )


def _free_box(x: float, y: float, width: float, used_boxes: list[Box], frame: Box) -> Box | None:
    """Return the box of words beside a point that covers no used box and stays in the frame, or None.

    >>> _free_box(50, 50, 40, [(45, 45, 55, 55)], (0, 0, 200, 100))
    (58, 36, 98, 50)
    >>> _free_box(50, 50, 40, [(45, 45, 55, 55), (60, 40, 90, 49)], (0, 0, 200, 100))
    (2, 36, 42, 50)
    """
    for down in (-14, 2, -30, 18):
        for start in (x + 8, x - 8 - width):
            box = (start, y + down, start + width, y + down + 14)
            is_inside = (
                frame[0] <= box[0] and frame[1] <= box[1] and box[2] <= frame[2] and box[3] <= frame[3]
            )
            if is_inside and not any(
                box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3] for b in used_boxes
            ):
                return box
    return None


def _draw_sample(out: Canvas, index: int, x: float, y: float) -> None:
    out.parts.append(f'<path d="M{x:.0f} {y:.0f}h22" {_stroke(index)}/>')
    out.parts.append(f'<circle cx="{x + 11:.0f}" cy="{y:.0f}" r="3.5" fill="{ink_of(index)}"/>')


def _stroke(index: int) -> str:
    dash = DASHES[index % len(DASHES)]
    return f'stroke="{ink_of(index)}" stroke-width="2"' + (f' stroke-dasharray="{dash}"' if dash else "")


def _ticks(low: float, high: float, label: str) -> list[float]:
    """Return the ticks of an axis whose range is given as decimal logarithms.

    They are powers of ten, or of two for bytes. A short range has ticks between them, a long range skips some.
    """
    if _number_format(label) is bytes_text:
        ends = 10.0**low, 10.0**high
        doubled = [2.0**k for k in range(ceil(log2(ends[0]) - 1e-9), floor(log2(ends[1]) + 1e-9) + 1)]
        if len(doubled) >= 3:
            return doubled[:: ceil(len(doubled) / 6)]
        unit = 1024.0 ** floor(log2(ends[1]) / 10)
        return [unit * count for count in round_numbers(ends[0] / unit, ends[1] / unit)]
    decades = [10.0**k for k in range(ceil(low - 1e-9), floor(high + 1e-9) + 1)]
    if len(decades) >= 3:
        return decades[:: ceil(len(decades) / 10)]
    candidates = [m * 10.0**k for k in range(floor(low), ceil(high) + 1) for m in (1, 2, 5)]
    ticks = [v for v in candidates if low - 1e-9 <= log10(v) <= high + 1e-9]
    return ticks if len(ticks) > 2 else round_numbers(10.0**low, 10.0**high)


def round_numbers(low: float, high: float) -> list[float]:
    """Return three to seven numbers in a range, whose distance is 1, 2 or 5 times a power of ten.

    >>> round_numbers(0, 1250), round_numbers(2.37, 2.71)
    ([0.0, 200.0, 400.0, 600.0, 800.0, 1000.0, 1200.0], [2.4, 2.45, 2.5, 2.55, 2.6, 2.65, 2.7])
    """
    least_step = (high - low) / 7 or 1.0
    unit = 10.0 ** floor(log10(least_step))
    step = next(m * unit for m in (1, 2, 5, 10) if m * unit >= least_step)
    return [float(f"{k * step:.9g}") for k in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]
