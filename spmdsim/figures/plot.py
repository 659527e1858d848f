"""Draw line plots with logarithmic axes.

A :class:`Plot` states what to draw. :func:`plot_canvas` draws it: a :class:`_Frame` maps values to pixels, and a
function draws each part.
"""

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

        Both ranges have a length above 0, even of a single point.

        Raises:
            InputError: If there is no point, or a number is not above 0.
        """
        xs = [x for line in self.lines for x, _ in line.points]
        ys = [y for line in self.lines for _, y in line.points]
        if not xs:
            raise InputError("a plot must have at least one point, got none")
        if min(xs) <= 0 or min(ys) <= 0:
            raise InputError("numbers on logarithmic axes must be above 0")
        low_x, high_x, low_y, high_y = (log10(end) for end in (min(xs), max(xs), min(ys), max(ys)))
        return low_x, max(high_x, low_x + 1e-9), low_y, max(high_y, low_y + 1e-9)


def _number_format(label: str) -> Callable[[float], str]:
    """Return the function that writes the numbers of an axis with this label."""
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

    Both axes are logarithmic. Lines have five kinds of dashes in turn, so that lines on top of each other stay visible.
    A legend is at the right.

    Args:
        plot: the content.
        width: width of the drawing in pixels; the inner frame has at least 240.
        height: height in pixels without the legend of vertical lines.

    Raises:
        InputError: If there is no point, or a number is not above 0.
    """
    low_x, high_x, low_y, high_y = plot.ranges()
    padding_x, padding_y = max(0.03 * (high_x - low_x), 0.01), max(0.05 * (high_y - low_y), 0.01)
    name_width = max(width_of(words) for words in [line.name for line in plot.lines] + [plot.title[:24]])
    left, right, top, bottom = 66, int(name_width) + 56, 30, 44
    frame = _Frame(
        left,
        top,
        max(width - left - right, 240),
        height - top - bottom,
        (low_x - padding_x, high_x + padding_x),
        (low_y - padding_y, high_y + padding_y),
    )
    out = Canvas()
    _draw_axes(out, plot, frame)
    _draw_lines(out, plot, frame)
    return out


@dataclass(frozen=True)
class _Frame:
    """The frame of a plot, which maps values to pixels.

    Attributes:
        left: left edge, in pixels.
        top: upper edge.
        width: width.
        height: height.
        x_range: decimal logarithms of the values at the left and right edge.
        y_range: decimal logarithms of the values at the lower and upper edge.
    """

    left: int
    top: int
    width: int
    height: int
    x_range: tuple[float, float]
    y_range: tuple[float, float]

    def pixel_x(self, x: float) -> float:
        """Return the horizontal pixel of a value."""
        low, high = self.x_range
        return self.left + (log10(x) - low) / (high - low) * self.width

    def pixel_y(self, y: float) -> float:
        """Return the vertical pixel of a value."""
        low, high = self.y_range
        return self.top + (high - log10(y)) / (high - low) * self.height

    @property
    def box(self) -> Box:
        """The edges of the frame, in pixels."""
        return self.left, self.top, self.left + self.width, self.top + self.height


def _draw_axes(out: Canvas, plot: Plot, frame: _Frame) -> None:
    """Draw a plot's title, frame, grid, labels, and vertical lines with their legend.

    The grid has a line across the frame for each tick, with the tick's number beside the frame. A number of the
    horizontal axis is left out if it would touch the number before.

    Vertical lines mark values of the horizontal axis. Those outside of the frame are not drawn, but are still named in
    the legend below the plot.

    Args:
        out: the canvas; changed in place.
        plot: the content.
        frame: the frame, in pixels.
    """
    left, top, right, low = frame.box
    x_text, y_text = _number_format(plot.x_label), _number_format(plot.y_label)
    out.text(left, 14, plot.title)
    label_end = 0.0
    for x in _ticks(*frame.x_range, plot.x_label):
        middle, half = frame.pixel_x(x), width_of(x_text(x)) / 2
        out.line(middle, top, middle, low)
        if middle - half >= label_end:
            out.text(middle, low + 16, x_text(x), anchor="middle")
            label_end = middle + half + 8
    for y in _ticks(*frame.y_range, plot.y_label):
        out.line(left, frame.pixel_y(y), right, frame.pixel_y(y))
        out.text(left - 6, frame.pixel_y(y) + 4, y_text(y), anchor="end")
    dashes = ' stroke-dasharray="2 4"'
    for x, label in plot.x_marks:
        if frame.x_range[0] <= log10(x) <= frame.x_range[1]:
            out.line(frame.pixel_x(x), top, frame.pixel_x(x), low, "edge", dashes, f"{x_text(x)}: {label}")
    for edge in (
        (left, top, right, top),
        (left, low, right, low),
        (left, top, left, low),
        (right, top, right, low),
    ):
        out.line(*edge, "edge")
    out.text(left + frame.width / 2, low + 34, plot.x_label, anchor="middle")
    for index, (x, label) in enumerate(plot.x_marks):  # a legend, for readers without a pointer
        y = low + 54 + 18 * index
        out.line(left + 3, y - 10, left + 3, y + 2, "edge", dashes)
        out.text(left + 12, y, f"{x_text(x)}: {label}", "faint")
    out.parts.append(
        f'<text transform="translate(10 {top + frame.height / 2:.0f}) rotate(-90)" text-anchor="middle">'
        f"{escape(plot.y_label)}</text>"
    )


def _draw_lines(out: Canvas, plot: Plot, frame: _Frame) -> None:
    """Draw the lines of a plot, and their legend at the right.

    A line of one point also has its name beside the point, unless every position there is covered by words or points.

    Args:
        out: the canvas; changed in place.
        plot: the content.
        frame: the frame, in pixels.
    """
    x_text, y_text = _number_format(plot.x_label), _number_format(plot.y_label)
    used_boxes: list[Box] = []
    for index, line in enumerate(plot.lines, plot.first_ink):
        points = [
            (frame.pixel_x(x), frame.pixel_y(y), f"{line.name}: {x_text(x)}, {y_text(y)}")
            for x, y in sorted(line.points)
        ]
        used_boxes += [(x - 5, y - 5, x + 5, y + 5) for x, y, _ in points]
        _draw_line(out, index, points)
    for line in plot.lines:
        if len(line.points) == 1:
            x, y = line.points[0]
            position = frame.pixel_x(x), frame.pixel_y(y)
            box = _free_box(*position, width_of(line.name), used_boxes, frame.box)
            if box is not None:
                used_boxes.append(box)
                out.text(box[0], box[3] - 4, line.name)
    right = frame.left + frame.width
    for index, line in enumerate(plot.lines):
        y = frame.top + 8 + 18 * index
        _draw_sample(out, plot.first_ink + index, right + 14, y)
        out.text(right + 42, y + 4, line.name)


def _draw_line(out: Canvas, index: int, points: list[tuple[float, float, str]]) -> None:
    """Draw line number ``index`` through points, with a marker at each point."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
    out.parts.append(f'<polyline points="{path}" fill="none" {_stroke(index)}/>')
    for x, y, pointer_text in points:
        out.parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{ink_of(index)}" stroke="var(--ground)">'
            f"<title>{escape(pointer_text)}</title></circle>"
        )


def _free_box(x: float, y: float, width: float, used_boxes: list[Box], frame: Box) -> Box | None:
    """Return a box for words beside the point ``(x, y)``; None if there is no free one.

    The box covers no used box and stays in the frame. Eight positions are tried: right and left of the point, at four
    heights; the first free one counts.

    Args:
        x: the point, in pixels.
        y: the point; y increases downwards.
        width: width of the words; the box is 14 high.
        used_boxes: boxes of other words and points.
        frame: the frame of the plot.

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
            if is_inside and not any(_overlap(box, used_box) for used_box in used_boxes):
                return box
    return None


def _overlap(a: Box, b: Box) -> bool:
    """Return True if two boxes have a common area."""
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _draw_sample(out: Canvas, index: int, x: float, y: float) -> None:
    """Draw a short piece of line number ``index`` with a marker, for the legend.

    It goes from ``(x, y)`` to the right, in pixels.
    """
    out.parts.append(f'<path d="M{x:.0f} {y:.0f}h22" {_stroke(index)}/>')
    out.parts.append(f'<circle cx="{x + 11:.0f}" cy="{y:.0f}" r="3.5" fill="{ink_of(index)}"/>')


def _stroke(index: int) -> str:
    """Return the SVG attributes of line number ``index``: colour, width and dashes."""
    dash = DASHES[index % len(DASHES)]
    return f'stroke="{ink_of(index)}" stroke-width="2"' + (f' stroke-dasharray="{dash}"' if dash else "")


def _ticks(low: float, high: float, label: str) -> list[float]:
    """Return the values that are marked on an axis from ``10**low`` to ``10**high``, in order.

    The first of several kinds with at least three values in the range is taken, else the last kind. If ``label`` has
    the word "bytes", the kinds are:

    1. powers of two; of more than 6, only every second, third, ... one is taken, so that at most 6 remain;
    2. round multiples of a unit such as KiB, see :func:`round_numbers`.

    Otherwise they are:

    1. powers of ten; of more than 10, only every second, third, ... one is taken, so that at most 10 remain;
    2. 1, 2 and 5 times powers of ten;
    3. round numbers, see :func:`round_numbers`.

    Args:
        low: decimal logarithm of the smallest value.
        high: decimal logarithm of the largest value.
        label: label of the axis.

    >>> _ticks(0, 3, "step"), _ticks(3, 4, "bytes")
    ([1.0, 10.0, 100.0, 1000.0], [1024.0, 2048.0, 4096.0, 8192.0])
    """
    if _number_format(label) is bytes_text:
        smallest, largest = 10.0**low, 10.0**high
        powers_of_two = [2.0**k for k in range(ceil(log2(smallest) - 1e-9), floor(log2(largest) + 1e-9) + 1)]
        if len(powers_of_two) >= 3:
            return powers_of_two[:: ceil(len(powers_of_two) / 6)]
        unit = 1024.0 ** floor(log2(largest) / 10)
        return [unit * count for count in round_numbers(smallest / unit, largest / unit)]
    powers_of_ten = [10.0**k for k in range(ceil(low - 1e-9), floor(high + 1e-9) + 1)]
    if len(powers_of_ten) >= 3:
        return powers_of_ten[:: ceil(len(powers_of_ten) / 10)]
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
