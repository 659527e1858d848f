"""Time axes have the order and the proportions of events, and cut idle time."""

from __future__ import annotations

import re

import pytest
from drawn_words import titles

from spmdsim.figures.canvas import svg, width_of
from spmdsim.figures.time_axis import CUT, TimeAxis
from spmdsim.figures.timeline_figures import Bar, draw_timeline


def test_events_with_a_long_pause_between_them_fill_the_picture():
    """Draw two calls of a millisecond with ten idle seconds between them."""
    bars = [Bar(0, "matmul", 5.0, 5.001), Bar(1, "all_reduce", 15.0, 15.003)]
    image = svg(draw_timeline(("operators", "collectives"), bars), "trace")
    widths = [float(w) for w in re.findall(r'width="([\d.]+)" height="18" fill="#', image)]
    assert widths[:2] == [pytest.approx(770 / 4, abs=1), pytest.approx(770 * 3 / 4, abs=1)]
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
    axis = TimeAxis(spans, 800.0)
    moments = sorted({moment for span in spans for moment in span})
    positions = [axis.place(moment) for moment in moments]
    assert positions == sorted(positions) and all(-1e-6 <= x <= 800 + 1e-6 for x in positions)
    assert all(0 <= x <= 800 + 1e-6 for _, _, x in axis.ticks())
    durations = [end - start for start, end in spans]
    scales = [(axis.place(end) - axis.place(start)) / (end - start) for start, end in spans if end > start]
    assert not scales or max(scales) == pytest.approx(min(scales), rel=1e-3)  # All events have one scale.
    assert all(axis.place(end) - axis.place(start) <= CUT + 1e-6 for start, end in axis.cuts)
    assert not spans or sum(durations) == 0 or sum(scales) / len(scales) * sum(durations) >= 800 / 3


def test_many_short_pauses_do_not_squeeze_events():
    """Draw 200 calls of 10 us with pauses of 1 ms. All pauses are longer than all calls."""
    image = svg(
        draw_timeline(("operators",), [Bar(0, "add", k * 1e-3, k * 1e-3 + 1e-5) for k in range(200)]), "trace"
    )
    widths = [float(w) for w in re.findall(r'width="([\d.]+)" height="18" fill="#', image)]
    assert len(widths) == 200 and min(widths) >= 800 / 3 / 200
    assert "cut: nothing happens for 197 ms in all" in image


def test_ticks_after_a_cut_have_different_labels():
    bars = [Bar(0, "a", 0.0, 1e-4), Bar(0, "b", 0.505, 0.5051)]
    image = svg(draw_timeline(("operators",), bars), "trace")
    labels = re.findall(r'class="faint"[^>]*>([^<]*\d \w+)<', image)
    assert len({*labels}) == len(labels) >= 4 and "505 ms" in labels and "+50 us" in labels


def test_short_pauses_are_not_cut():
    axis = TimeAxis([(0.0, 1.0), (1.5, 2.5)], 100.0)
    assert not axis.cuts and axis.place(1.5) == pytest.approx(60)


@pytest.mark.parametrize("count", range(1, 25))
def test_the_legend_of_waits_is_not_wider_than_the_timeline(count: int):
    """The entry for waits starts a new row where the names of the bars leave too little space."""
    bars = [Bar(0, f"collective {k:02}", k, k + 0.5, waits=0.1) for k in range(count)]
    image = svg(draw_timeline(("r",), bars), "trace")
    (left,) = re.findall(r'<text x="([\d.]+)"[^>]*>hatched: waits<', image)
    assert float(left) + width_of("hatched: waits") <= width_of("r") + 10 + 800
