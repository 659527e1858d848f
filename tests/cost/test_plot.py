"""Line plots: where points land, what is refused."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from spmdsim.errors import InputError
from spmdsim.figures.canvas import svg
from spmdsim.figures.plot import TIME, Line, Plot, plot_canvas, save_png, terminal_plot

PLOT = Plot(
    "a < b & c",
    "bytes",
    TIME,
    (Line("falls", ((1, 1e-3), (10, 1e-4), (100, 1e-5))), Line("rises", ((1, 1e-5), (100, 1e-3)))),
    ((10.0, "cross"),),
)


def test_terminal_points_lie_where_they_should() -> None:
    lines = terminal_plot(PLOT, width=41, height=11)
    body = [line.split("|", 1)[1].ljust(41) for line in lines[1:12]]
    assert (body[0][0], body[5][20], body[10][40]) == ("o", "o", "o")
    assert (body[10][0], body[0][40]) == ("x", "x")
    assert body[0][20] == ":"  # the mark of the crossover
    assert lines[1].split()[:2] == ["1", "ms"] and lines[11].split()[:2] == ["10", "us"]
    assert "o falls" in "\n".join(lines) and ": 10 B  cross" in "\n".join(lines)


def test_every_line_has_its_own_sign_from_end_to_end_and_equal_ones_share_it() -> None:
    points = ((1.0, 1.0), (10.0, 10.0), (100.0, 100.0))
    lines = (
        Line("low", tuple((x, y / 10) for x, y in points)),
        Line("high", points),
        Line("as high", points),
    )
    told = terminal_plot(Plot("t", "x", "y", lines), width=31, height=13)
    body = [line.split("|", 1)[1].ljust(31) for line in told[1:14]]
    assert "." not in "".join(body) and told[-2:] == ["  o low", "  x high, as high"]
    for column in range(31):
        signs = "".join(row[column] for row in body).replace(" ", "")
        assert set(signs) == {"o", "x"} and signs.startswith("x") and signs.endswith("o")


def test_a_plot_is_as_narrow_as_its_terminal() -> None:
    for columns in (80, 60, 40):
        lines = terminal_plot(PLOT, columns=columns)
        drawn = [line for line in lines[1:] if "|" in line or "+--" in line]
        assert len(drawn) == 21 and max(map(len, drawn)) == min(columns, len("100 us |") + 72)
        assert lines[lines.index(drawn[-1]) + 1].rstrip().endswith("100 B")
    assert max(map(len, terminal_plot(PLOT))) == max(map(len, terminal_plot(PLOT, columns=200)))


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
    drawn = svg(plot_canvas(Plot("t", label, "y", (Line("a", ((low, 1.0), (high, 9.0))),))), "t")
    texts = [text.text for text in ET.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")]
    at = texts.index("t") + 1
    assert texts[at : at + len(words)] == words


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
