"""Map seconds to pixels of a timeline; long idle times are cut to a short mark."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise

from spmdsim.figures.plot import round_numbers

CUT = 30.0
"""Width of a cut idle time, in pixels."""
MOST_OF_CUTS = 0.3
"""Largest part of the axis that all cuts take together."""
APART = 72.0
"""Smallest distance of two ticks, in pixels."""


class TimeAxis:
    """An axis of seconds with a fixed length. Long idle times are cut if events take less than half of the time.

    Idle times lie between events; overlapping events count as one. Of n idle times, those are cut that are longer than
    the seconds of all events divided by n. So the other idle times are together at most as long as the events.

    Args:
        spans: first and last second of each event.
        length: length of the axis, in pixels.

    >>> axis = TimeAxis([(1.0, 2.0), (101.0, 102.0)], 230.0)
    >>> axis.place(1.0), axis.place(2.0), axis.place(101.0), axis.place(102.0)
    (0.0, 100.0, 130.0, 230.0)
    >>> axis.cuts
    [(2.0, 101.0)]
    """

    def __init__(self, spans: Iterable[tuple[float, float]], length: float) -> None:
        busy: list[list[float]] = []
        for start, end in sorted(spans) or [(0.0, 1.0)]:
            if busy and start <= busy[-1][1]:
                busy[-1][1] = max(busy[-1][1], end)
            else:
                busy.append([start, end])
        self.first, self.last = busy[0][0], busy[-1][1]
        seconds = sum(end - start for start, end in busy)
        gaps = [(a[1], b[0]) for a, b in pairwise(busy)]
        idle = sum(end - start for start, end in gaps)
        # Idle times up to `longest` are not cut. No idle time is longer than their sum, so then nothing is cut.
        longest = seconds / len(gaps) if idle > seconds > 0 else idle
        self.cuts = [(start, end) for start, end in gaps if end - start > longest]
        cut = min(CUT, MOST_OF_CUTS * length / max(len(self.cuts), 1))
        drawn_seconds = self.last - self.first - sum(end - start for start, end in self.cuts)
        self._scale = (length - cut * len(self.cuts)) / max(drawn_seconds, 1e-30)
        edges = [self.first, *(edge for ends in self.cuts for edge in ends), self.last]
        self._knots: list[tuple[float, float]] = [(self.first, 0.0)]
        for number, (start, end) in enumerate(pairwise(edges)):
            span_width = cut if number % 2 else (end - start) * self._scale
            self._knots.append((end, self._knots[-1][1] + span_width))

    def place(self, second: float) -> float:
        """Return the pixel of a second; the first event starts at pixel 0.

        Seconds before the first or after the last event are extrapolated.
        """
        knot = min(max(bisect_right(self._knots, (second, float("inf"))), 1), len(self._knots) - 1)
        (start, left), (end, right) = self._knots[knot - 1 : knot + 1]
        fraction = (second - start) / (end - start) if end > start else 0.0
        return left + fraction * (right - left)

    @property
    def idle(self) -> float:
        """Seconds that are cut out."""
        return sum(end - start for start, end in self.cuts)

    def ticks(self) -> list[tuple[float, float, float]]:
        """Return the ticks as ``(span_start, offset, pixel)``, from left to right.

        A span is the drawn time between two cuts. A tick lies ``span_start + offset`` seconds after the first event:
        ``span_start`` is where its span starts, ``offset`` is the time since then. Each span has a tick at its start
        (offset 0), and ticks at multiples of one round step, which all spans share.

        Ticks nearer than 72 pixels to another are left out:

        - Within a span, the later tick is left out.
        - The tick at a span's start has precedence over ticks with an offset in the spans before.
        - If a span starts too near to the start of another, all of its ticks are left out.

        In the example, the events take seconds 1 to 2 and 101 to 102, and the idle time between them is cut:

        >>> TimeAxis([(1.0, 2.0), (101.0, 102.0)], 230.0).ticks()
        [(0.0, 0.0, 0.0), (100.0, 0.0, 130.0), (100.0, 1.0, 230.0)]
        """
        drawn_seconds = self.last - self.first - self.idle
        rounds = round_numbers(0, drawn_seconds)
        step = rounds[1] - rounds[0] if len(rounds) > 1 else drawn_seconds
        edges = [self.first, *(edge for ends in self.cuts for edge in ends), self.last]
        marks: list[tuple[float, float, float]] = []
        for start, end in zip(edges[::2], edges[1::2]):  # spans; cuts lie between them
            span_start, x = start - self.first, self.place(start)
            # Ticks at starts of spans have the offset 0.
            while marks and marks[-1][1] and x - marks[-1][2] < APART:
                marks.pop()
            if marks and x - marks[-1][2] < APART:
                continue
            marks.append((span_start, 0.0, x))
            # Add a little, so that rounding does not lose a tick at the end of the span.
            count = int((end - start) / step + 1e-9) if step > 0 else 0
            for k in range(1, count + 1):
                x = self.place(start + k * step)
                if x - marks[-1][2] >= APART:
                    marks.append((span_start, k * step, x))
        return marks
