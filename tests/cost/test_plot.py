"""Line plots have points, titles and grid lines at the right positions."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from spmdsim.errors import InputError
from spmdsim.figures.figures import Figure
from spmdsim.figures.plot import TIME, Line, Plot, plot_canvas

PLOT = Plot(
    "a < b & c",
    "bytes",
    TIME,
    (Line("falls", ((1, 1e-3), (10, 1e-4), (100, 1e-5))), Line("rises", ((1, 1e-5), (100, 1e-3)))),
    ((10.0, "cross"),),
)


def draw(plot: Plot) -> ET.Element:
    """Return the SVG image of a plot."""
    return ET.fromstring(Figure("figure", (plot_canvas(plot),)).svg)


def test_flat_lines_and_single_points_can_be_drawn() -> None:
    for points in (((1.0, 5.0), (10.0, 5.0)), ((3.0, 4.0),)):
        draw(Plot("t", "x", "y", (Line("a", points),)))


def test_svg_is_one_valid_image_with_titles() -> None:
    root = draw(PLOT)
    name = "{http://www.w3.org/2000/svg}"
    lines = list(root.iter(f"{name}polyline"))
    assert len(lines) == 2
    assert "10 B: cross" in [text.text for text in root.iter(f"{name}text")]
    first = [tuple(map(float, pair.split(","))) for pair in lines[0].get("points", "").split()]
    assert first[0][0] < first[1][0] < first[2][0] and first[0][1] < first[1][1] < first[2][1]
    # Equal ratios are equal distances.
    assert first[1][0] - first[0][0] == pytest.approx(first[2][0] - first[1][0], abs=0.11)
    titles = [title.text for title in root.iter(f"{name}title")]
    assert "falls: 10 B, 100 us" in titles and "10 B: cross" in titles
    assert root.find(f"{name}script") is None


@pytest.mark.parametrize(
    ("label", "low", "high", "words"),
    [
        (TIME, 2.5e-4, 7.4e-4, ["300 us", "400 us", "500 us", "600 us", "700 us"]),
        ("bytes of a rank", 1.6 * 2**20, 4.2 * 2**20, ["2 MiB", "2.5 MiB", "3 MiB", "3.5 MiB", "4 MiB"]),
        ("bytes", 2**10, 2**26, ["1 KiB", "8 KiB", "64 KiB", "512 KiB", "4 MiB", "32 MiB"]),
        ("ranks", 2, 3000, ["10", "100", "1k"]),
    ],
)
def test_lines_of_the_grid_are_at_round_numbers_in_units(label, low, high, words) -> None:
    drawn = draw(Plot("t", label, "y", (Line("a", ((low, 1.0), (high, 9.0))),)))
    texts = [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    at = texts.index("t") + 1
    assert texts[at : at + len(words)] == words


def test_numbers_without_a_logarithm_are_refused() -> None:
    with pytest.raises(InputError, match="must be above 0"):
        plot_canvas(Plot("t", "x", "y", (Line("a", ((0.0, 1.0),)),)))
    with pytest.raises(InputError, match="at least one point"):
        plot_canvas(Plot("t", "x", "y", (Line("a", ()),)))
