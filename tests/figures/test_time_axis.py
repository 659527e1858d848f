"""Time axes have the order and the proportions of events, and cut idle time."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from drawn_words import LETTER, titles

from spmdsim.figures import figure
from spmdsim.simulation import Report


def call(rank: int, name: str, start: float, end: float, is_wait: bool = False) -> dict:
    """Return an event of a timeline in Chrome's format; ``start`` and ``end`` are in seconds."""
    times = {"ts": start * 1e6, "dur": (end - start) * 1e6}
    return {"ph": "X", "pid": rank, "tid": 0, "name": name, "cat": "wait" if is_wait else "call", **times}


def draw(calls: list[dict], ranks: int = 1) -> str:
    """Return the picture of a simulated run with these calls, as SVG."""
    zeros = (0,) * ranks
    report = Report(
        ranks, (), True, (None,) * ranks, (0.0,) * ranks, zeros, zeros, (), 0, trace={"traceEvents": calls}
    )
    return figure(report).svg


def axis_ends(image: str) -> tuple[float, float]:
    """Return the pixels at which the line of the first rank starts and ends."""
    left, right = re.search(r'class="line" d="M([\d.]+) ([\d.]+)L([\d.]+) \2"', image).group(1, 3)
    return float(left), float(right)


def cut_ends(image: str) -> list[tuple[float, float]]:
    """Return the left and right edges of the marks of idle times on the axis."""
    boxes = re.findall(r'class="ground" x="([\d.]+)" y="16" width="([\d.]+)"', image)
    return [(float(left), float(left) + float(width)) for left, width in boxes]


def test_events_with_a_long_pause_between_them_fill_the_picture():
    """Draw two calls of a millisecond with ten idle seconds between them."""
    image = draw([call(0, "matmul", 5.0, 5.001), call(1, "all_reduce", 15.0, 15.003)], 2)
    widths = [float(w) for w in re.findall(r'width="([\d.]+)" height="18" fill="#', image)]
    assert widths[:2] == [pytest.approx(710 / 4, abs=1), pytest.approx(710 * 3 / 4, abs=1)]
    assert "cut: nothing happens for 10 s" in image and "nothing happens for 10 s" in titles(image)
    labels = re.findall(r'class="faint"[^>]*>([\d.]+ \w+)<', image)
    assert labels[0] == "0 s" and any(
        label.startswith("10") for label in labels
    )  # Labels are seconds since the first event.


@pytest.mark.parametrize(
    "spans",
    [
        [(0.0, 1.0)],
        [(0.0, 1.0), (0.5, 2.0), (2.5, 3.0)],
        [(0.0, 1e-6), (1.0, 1.0 + 1e-6), (7.0, 7.0 + 1e-6)],
        [(k * 1e-3, k * 1e-3 + 1e-6) for k in range(200)],
        [(k * 1e-3, k * 1e-3 + 1e-5) for k in range(200)],
        [(k * 1e-3, k * 1e-3 + 6e-4) for k in range(20)],
        [(3.0, 3.0)],
        [],
    ],
)
def test_positions_ascend_and_stay_inside_the_axis(spans):
    image = draw([call(0, "call", start, end) for start, end in spans])
    left, right = axis_ends(image)
    bars = re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)" height="18" fill="#', image)
    drawn = [(float(x), float(width)) for x, width in bars]
    assert right - left == pytest.approx(740, abs=0.1) and len(drawn) == len(spans)
    starts = [(start, x) for (start, _), (x, _) in zip(spans, drawn)]
    # At least half a pixel of a bar is drawn, so shorter ones do not show where their calls end.
    ends = [(end, x + width) for (_, end), (x, width) in zip(spans, drawn) if width > 0.5]
    pixels = [pixel for _, pixel in sorted([*starts, *ends])]
    assert all(a <= b + 0.1 for a, b in pairwise(pixels)) and all(left <= x <= right + 0.1 for x in pixels)
    ticks = re.findall(r'class="line" d="M([\d.]+) 16L', image)
    assert ticks and all(left <= float(x) <= right for x in ticks)
    seconds = [end - start for start, end in spans]
    scale = max((width / duration for (_, width), duration in zip(drawn, seconds) if duration), default=0.0)
    for (_, width), duration in zip(drawn, seconds):  # All events have one scale. Pixels have one decimal.
        assert width == pytest.approx(max(scale * duration, 0.5), abs=0.1)
    assert all(end - start <= 30.1 for start, end in cut_ends(image))
    assert not scale or scale * sum(seconds) >= 740 / 3


def test_many_short_pauses_do_not_squeeze_events():
    """Draw 200 calls of 10 us with pauses of 1 ms. All pauses are longer than all calls."""
    image = draw([call(0, "add", k * 1e-3, k * 1e-3 + 1e-5) for k in range(200)])
    widths = [float(w) for w in re.findall(r'width="([\d.]+)" height="18" fill="#', image)]
    assert len(widths) == 200 and min(widths) >= 740 / 3 / 200
    assert "cut: nothing happens for 197 ms in all" in image


def test_ticks_after_a_cut_have_different_labels():
    image = draw([call(0, "a", 0.0, 1e-4), call(0, "b", 0.505, 0.5051)])
    labels = re.findall(r'class="faint"[^>]*>([^<]*\d \w+)<', image)
    assert len({*labels}) == len(labels) >= 4 and "505 ms" in labels and "+50 us" in labels


def test_short_pauses_are_not_cut():
    image = draw([call(0, "a", 0.0, 1.0), call(0, "b", 1.5, 2.5)])
    (left, right), starts = (
        axis_ends(image),
        re.findall(r'<rect x="([\d.]+)" y="[^"]*" width="[^"]*" height="18"', image),
    )
    assert not cut_ends(image) and "cut" not in image
    assert float(starts[1]) == pytest.approx(left + 0.6 * (right - left), abs=0.1)


@pytest.mark.parametrize("count", range(1, 25))
def test_the_legend_of_waits_is_not_wider_than_the_timeline(count: int):
    """The entry for waits starts a new row where the names of the bars leave too little space."""
    image = draw([call(0, f"collective {k:02}", k, k + 0.5, is_wait=True) for k in range(count)])
    (left,) = re.findall(r'<text x="([\d.]+)"[^>]*>hatched: waits<', image)
    assert float(left) + len("hatched: waits") * LETTER <= axis_ends(image)[1]
