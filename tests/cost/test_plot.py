"""Line plots: where points land, what is refused."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from spmdsim.draw.canvas import svg
from spmdsim.draw.plot import Line, Plot, plot_canvas, save_png, terminal_plot
from spmdsim.errors import InputError

PLOT = Plot(
    "a < b & c",
    "bytes",
    "seconds",
    (Line("falls", ((1, 1e-3), (10, 1e-4), (100, 1e-5))), Line("rises", ((1, 1e-5), (100, 1e-3)))),
    ((10.0, "cross"),),
)


def test_terminal_points_lie_where_they_should() -> None:
    lines = terminal_plot(PLOT, width=41, height=11)
    body = [line.split("|", 1)[1].ljust(41) for line in lines[1:12]]
    assert (body[0][0], body[5][20], body[10][40]) == ("o", "o", "o")
    assert (body[10][0], body[0][40]) == ("x", "x")
    assert body[0][20] == ":"  # the mark of the crossover
    assert lines[1].split()[0] == "1m" and lines[11].split()[0] == "10u"
    assert "o falls" in "\n".join(lines) and ": 10  cross" in "\n".join(lines)


def test_flat_lines_and_single_points_can_be_drawn() -> None:
    for points in (((1.0, 5.0), (10.0, 5.0)), ((3.0, 4.0),)):
        plot = Plot("t", "x", "y", (Line("a", points),))
        assert "o" in "".join(terminal_plot(plot)[1:-4])
        ET.fromstring(svg(plot_canvas(plot), plot.title))


def test_svg_is_one_valid_image_with_titles() -> None:
    root = ET.fromstring(svg(plot_canvas(PLOT), PLOT.title))
    name = "{http://www.w3.org/2000/svg}"
    lines = list(root.iter(f"{name}polyline"))
    assert len(lines) == 2
    first = [tuple(map(float, pair.split(","))) for pair in lines[0].get("points", "").split()]
    assert first[0][0] < first[1][0] < first[2][0] and first[0][1] < first[1][1] < first[2][1]
    # Equal ratios are equal distances.
    assert first[1][0] - first[0][0] == pytest.approx(first[2][0] - first[1][0], abs=0.11)
    titles = [title.text for title in root.iter(f"{name}title")]
    assert "falls: 10, 100u" in titles and "10: cross" in titles
    assert root.find(f"{name}script") is None


def test_numbers_a_logarithm_cannot_show_are_refused() -> None:
    with pytest.raises(InputError, match="greater than 0"):
        terminal_plot(Plot("t", "x", "y", (Line("a", ((0.0, 1.0),)),)))
    with pytest.raises(InputError, match="nothing to plot"):
        plot_canvas(Plot("t", "x", "y", (Line("a", ()),)))


def test_png_is_written_where_matplotlib_is(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "plot.png"
    save_png(PLOT, path)
    assert path.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InputError, match="cannot write"):
        save_png(PLOT, tmp_path / "no" / "plot.png")


def test_png_without_matplotlib_says_what_to_do(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(InputError, match="PNG needs matplotlib"):
        save_png(PLOT, tmp_path / "plot.png")
