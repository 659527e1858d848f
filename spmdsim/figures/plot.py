"""Line plots on logarithmic axes, as SVG."""

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
"""Left, upper, right and lower end."""

#: The label of an axis whose numbers are said with their unit.
TIME = "time"
#: Of lines on top of each other every one is seen.
DASHES = ("", "8 4", "3 3", "10 3 2 3", "1 4")


@dataclass(frozen=True)
class Line:
    """One line: a name and its points, all greater than 0."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Plot:
    """What to draw; what is called :data:`TIME` is in seconds, and ``bytes`` or ``bytes of ...`` in bytes."""

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    x_marks: tuple[tuple[float, str], ...] = ()  # vertical, such as crossovers
    undrawn: tuple[str, ...] = ()  # names of lines for which there is no room

    @property
    def undrawn_words(self) -> str:
        """What to say of lines that are missing."""
        drawn = f"drawn are the {len(self.lines)} fastest; not drawn:"
        return f"{drawn} {', '.join(self.undrawn)}" if self.undrawn else ""

    def ranges(self) -> tuple[float, float, float, float]:
        """Smallest and largest x and y, as powers of ten."""
        xs = [x for line in self.lines for x, _ in line.points]
        ys = [y for line in self.lines for _, y in line.points]
        if not xs:
            raise InputError("there is nothing to plot: no line has a point")
        if min(xs) <= 0 or min(ys) <= 0:
            raise InputError("logarithmic axes show numbers greater than 0 only")
        low_x, high_x, low_y, high_y = (log10(v) for v in (min(xs), max(xs), min(ys), max(ys)))
        return low_x, max(high_x, low_x + 1e-9), low_y, max(high_y, low_y + 1e-9)


def _words(label: str) -> Callable[[float], str]:
    if "bytes" in label.split(" "):
        return bytes_text
    return seconds_text if label == TIME else short


def short(value: float) -> str:
    """A number in few characters.

    >>> [short(v) for v in (0.00125, 3, 1500, 2.5e6, 4e-7)]
    ['1.25m', '3', '1.5k', '2.5M', '400n']
    """
    for factor, letter in zip((1e9, 1e6, 1e3, 1, 1e-3, 1e-6, 1e-9), ("G", "M", "k", "", "m", "u", "n")):
        if abs(value) >= factor * 0.9995:
            return f"{value / factor:.3g}{letter}"
    return f"{value:.3g}"


def plot_canvas(plot: Plot, width: int = 760, height: int = 440) -> Canvas:
    """The plot as a drawing; points tell their values when pointed at. Every line has its own dashes, too, so that lines which coincide are both seen."""
    low_x, high_x, low_y, high_y = plot.ranges()  # with room around the points, of one point, too
    room_x, room_y = max(0.03 * (high_x - low_x), 0.01), max(0.05 * (high_y - low_y), 0.01)
    low_x, high_x, low_y, high_y = low_x - room_x, high_x + room_x, low_y - room_y, high_y + room_y
    longest = max(width_of(words) for words in [line.name for line in plot.lines] + [plot.title[:24]])
    left, right, top, bottom = 66, int(longest) + 56, 30, 44
    inner_w, inner_h = max(width - left - right, 240), height - top - bottom
    out, say_x, say_y = Canvas(), _words(plot.x_label), _words(plot.y_label)

    def px(x: float) -> float:
        return left + (log10(x) - low_x) / (high_x - low_x) * inner_w

    def py(y: float) -> float:
        return top + (high_y - log10(y)) / (high_y - low_y) * inner_h

    out.text(left, 14, plot.title)
    for x in _ticks(low_x, high_x, plot.x_label):
        out.line(px(x), top, px(x), top + inner_h)
        out.text(px(x), top + inner_h + 16, say_x(x), anchor="middle")
    for y in _ticks(low_y, high_y, plot.y_label):
        out.line(left, py(y), left + inner_w, py(y))
        out.text(left - 6, py(y) + 4, say_y(y), anchor="end")
    for x, label in plot.x_marks:
        if low_x <= log10(x) <= high_x:
            ends = px(x), top, px(x), top + inner_h
            out.line(*ends, "edge", ' stroke-dasharray="2 4"', f"{say_x(x)}: {label}")
    for x1, y1, x2, y2 in ((0, 0, 1, 0), (0, 1, 1, 1), (0, 0, 0, 1), (1, 0, 1, 1)):
        out.line(left + x1 * inner_w, top + y1 * inner_h, left + x2 * inner_w, top + y2 * inner_h, "edge")
    out.text(left + inner_w / 2, top + inner_h + 34, plot.x_label, anchor="middle")
    for index, (x, label) in enumerate(plot.x_marks):  # who does not point sees what they are, too
        y = top + inner_h + 54 + 18 * index
        out.line(left + 3, y - 10, left + 3, y + 2, "edge", ' stroke-dasharray="2 4"')
        out.text(left + 12, y, f"{say_x(x)}: {label}", "faint")
    out.parts.append(
        f'<text transform="translate(10 {top + inner_h / 2:.0f}) rotate(-90)" text-anchor="middle">'
        f"{escape(plot.y_label)}</text>"
    )
    taken: list[Box] = []
    for index, line in enumerate(plot.lines):
        points = [(px(x), py(y), x, y) for x, y in sorted(line.points)]
        taken += [(x - 5, y - 5, x + 5, y + 5) for x, y, _, _ in points]
        told = [f"{line.name}: {say_x(x)}, {say_y(y)}" for _, _, x, y in points]
        _draw_line(out, index, [*zip(points, told)])
    for line in plot.lines:
        if len(line.points) == 1:  # no line: its name stands beside it, where there is room
            (x, y), wide = (px(line.points[0][0]), py(line.points[0][1])), width_of(line.name)
            box = _free(x, y, wide, taken, (left, top, left + inner_w, top + inner_h))
            if box is not None:
                taken.append(box)
                out.text(box[0], box[3] - 4, line.name)
    for index, line in enumerate(plot.lines):
        y = top + 8 + 18 * index
        _sample(out, index, left + inner_w + 14, y)
        out.text(left + inner_w + 42, y + 4, line.name)
    return out


def _draw_line(out: Canvas, index: int, points: list[tuple[tuple[float, ...], str]]) -> None:
    """A line through points, each with what it tells."""
    path = " ".join(f"{x:.1f},{y:.1f}" for (x, y, *_), _ in points)
    out.parts.append(f'<polyline points="{path}" fill="none" {_stroke(index)}/>')
    for (x, y, *_), told in points:
        out.parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{ink_of(index)}" stroke="var(--ground)">'
            f"<title>{escape(told)}</title></circle>"
        )


def _free(x: float, y: float, wide: float, taken: list[Box], frame: Box) -> Box | None:
    """Room for words beside a point that hide nothing and stay in the frame; None where there is none.

    >>> _free(50, 50, 40, [(45, 45, 55, 55)], (0, 0, 200, 100))
    (58, 36, 98, 50)
    >>> _free(50, 50, 40, [(45, 45, 55, 55), (60, 40, 90, 49)], (0, 0, 200, 100))
    (2, 36, 42, 50)
    """
    for down in (-14, 2, -30, 18):
        for start in (x + 8, x - 8 - wide):
            box = (start, y + down, start + wide, y + down + 14)
            inside = frame[0] <= box[0] and frame[1] <= box[1] and box[2] <= frame[2] and box[3] <= frame[3]
            if inside and not any(
                box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3] for b in taken
            ):
                return box
    return None


def _sample(out: Canvas, index: int, x: float, y: float) -> None:
    out.parts.append(f'<path d="M{x:.0f} {y:.0f}h22" {_stroke(index)}/>')
    out.parts.append(f'<circle cx="{x + 11:.0f}" cy="{y:.0f}" r="3.5" fill="{ink_of(index)}"/>')


def _stroke(index: int) -> str:
    dash = DASHES[index % len(DASHES)]
    return f'stroke="{ink_of(index)}" stroke-width="2"' + (f' stroke-dasharray="{dash}"' if dash else "")


def _ticks(low: float, high: float, label: str) -> list[float]:
    """Powers of ten, of bytes of two, within a range of powers; more finely where there are few, more coarsely where there are many."""
    if _words(label) is bytes_text:
        ends = 10.0**low, 10.0**high
        doubled = [2.0**k for k in range(ceil(log2(ends[0]) - 1e-9), floor(log2(ends[1]) + 1e-9) + 1)]
        if len(doubled) >= 3:
            return doubled[:: ceil(len(doubled) / 6)]
        unit = 1024.0 ** floor(log2(ends[1]) / 10)
        return [unit * count for count in round_numbers(ends[0] / unit, ends[1] / unit)]
    decades = [10.0**k for k in range(ceil(low - 1e-9), floor(high + 1e-9) + 1)]
    if len(decades) >= 3:
        return decades[:: ceil(len(decades) / 10)]
    fine = [m * 10.0**k for k in range(floor(low), ceil(high) + 1) for m in (1, 2, 5)]
    ticks = [v for v in fine if low - 1e-9 <= log10(v) <= high + 1e-9]
    return ticks if len(ticks) > 2 else round_numbers(10.0**low, 10.0**high)


def round_numbers(low: float, high: float) -> list[float]:
    """Three to seven numbers in a range, as far apart as 1, 2 or 5 of some power of ten.

    >>> round_numbers(0, 1250), round_numbers(2.37, 2.71)
    ([0.0, 200.0, 400.0, 600.0, 800.0, 1000.0, 1200.0], [2.4, 2.45, 2.5, 2.55, 2.6, 2.65, 2.7])
    """
    wide = (high - low) / 7 or 1.0
    unit = 10.0 ** floor(log10(wide))
    step = next(m * unit for m in (1, 2, 5, 10) if m * unit >= wide)
    return [float(f"{k * step:.9g}") for k in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]
