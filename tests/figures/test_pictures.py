"""Every public type has a picture with readable words and right content."""

from __future__ import annotations

import importlib
import inspect
import io
import itertools
import re
import sys
import typing
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from drawn_words import contrast, fills, linear, titles
from pictured_values import MESH, VALUES, pictured

from spmdsim import LockStep, Mesh, Tensor, plan, show
from spmdsim.auto_parallel.search_report import PARTS
from spmdsim.cli.main import main
from spmdsim.collectives import schedule_of, unroll
from spmdsim.cost import Machine, parse_topology
from spmdsim.errors import InputError, UsageTypeError
from spmdsim.figures import Figure, figure
from spmdsim.figures.figures import DRAWN
from spmdsim.figures.plot import Line, Plot, plot_canvas
from spmdsim.pictured import Pictured

PUBLIC = (
    "spmdsim", "spmdsim.core", "spmdsim.layout", "spmdsim.collectives", "spmdsim.cost", "spmdsim.redistribution",
    "spmdsim.worlds.trace", "spmdsim.worlds", "spmdsim.arrays", "spmdsim.ops", "spmdsim.nn", "spmdsim.auto_parallel",
    "spmdsim.simulation", "spmdsim.cases", "spmdsim.local", "spmdsim.array_api", "spmdsim.figures.explore",
)  # fmt: skip
#: Largest number of characters of a picture, because longer ones make a page slow.
MOST_CHARACTERS = 1 << 20


def result_types(value: object) -> list[type]:
    """Return a public class itself, or the classes of the package in a function's return annotation."""
    if inspect.isclass(value):
        return [value]
    if not inspect.isfunction(value):
        return []
    try:
        annotation = typing.get_type_hints(value).get("return")
    except NameError:  # The annotation has a name that only type checkers import.
        return []
    return [kind for kind in (annotation, *typing.get_args(annotation)) if inspect.isclass(kind)]


def public_types() -> dict[type, str]:
    """Return the public types of the package, each with the name of a function or class that gives it."""

    kinds: dict[type, str] = {}
    for module in map(importlib.import_module, PUBLIC):
        for name in getattr(module, "__all__", ()):
            for kind in result_types(getattr(module, name)):
                is_of_package = kind.__module__.startswith("spmdsim.") and not issubclass(kind, BaseException)
                if is_of_package and not getattr(kind, "_is_protocol", False):
                    kinds.setdefault(kind, f"{module.__name__}.{name}")
    return kinds


def test_every_public_type_has_a_picture():
    kinds = public_types()
    assert len(kinds) > 60
    without = {
        public_name: kind.__qualname__
        for kind, public_name in kinds.items()
        if not issubclass(kind, Pictured)
        and not hasattr(kind, "_fields")  # Named tuples have no base but tuple.
    }
    # A type in this list needs a base class `Pictured`, or methods for notebooks.
    assert not without, without


def test_every_type_with_a_figure_is_tested():
    drawn = {
        f"{kind.__module__}.{kind.__qualname__}" for name in VALUES for kind in type(pictured(name)).__mro__
    }
    assert {*DRAWN} <= drawn
    assert all(kind.partition(".")[0] == "spmdsim" for kind in DRAWN)


@pytest.mark.parametrize("name", VALUES)
def test_a_picture_is_valid_and_a_repr_is_short(name, capsys):
    value = pictured(name)
    drawn = figure(value)
    image, page = drawn.svg, drawn.html
    root = ET.fromstring(image)
    assert root.get("role") == "img" and root.get("aria-label")
    title = next(root.iter("{http://www.w3.org/2000/svg}title")).text
    assert title and title == root.get("aria-label")
    assert len(image) <= MOST_CHARACTERS and len(page) <= MOST_CHARACTERS
    assert "prefers-color-scheme" in image and "@media print" in image
    for text in (image, page):
        assert not re.search(r"nan|inf\b|<script|href=|@import|url\(", re.sub(r">[^<]*<", "><", text))
    assert not re.search(r"frozenset|ndarray|&lt;\w+|\w\(\w+=", page)  # The page has no Python syntax.
    width, height = map(float, root.get("viewBox", "").split()[2:])
    assert 0 < width < 4000 and 0 < height < 4000
    assert " at 0x" not in repr(value)
    assert len(repr(value)) <= 200 or isinstance(value, list), repr(value)
    if not isinstance(value, list):
        assert value._repr_svg_() == image and value._repr_html_() == page
        bundle = value._repr_mimebundle_()
        assert bundle["text/html"] == page and bundle["text/plain"]
    show(value)
    output = capsys.readouterr().out
    assert output.strip() and len(output) < 20_000


@pytest.mark.parametrize("name", VALUES)
def test_the_text_for_an_ascii_terminal_is_ascii(name, monkeypatch):
    """Python refuses to print other characters under ``LC_ALL=C``."""
    stream = io.TextIOWrapper(io.BytesIO(), "ascii", errors="surrogateescape")
    monkeypatch.setattr(sys, "stdout", stream)
    show(pictured(name))
    stream.flush()
    assert stream.buffer.getvalue().isascii() and stream.buffer.getvalue().strip()


def test_values_of_other_packages_are_refused():
    for value in (3, "ring", [], object(), {"a": 1}):
        with pytest.raises(UsageTypeError, match="no picture of"):
            show(value)


def test_a_picture_that_would_be_too_large_is_refused(monkeypatch):
    monkeypatch.setattr("spmdsim.figures.figures.MOST_CHARACTERS", 500)
    with pytest.raises(InputError, match="must have at most 500 characters"):
        figure(MESH).svg


# -- colours --------------------------------------------------------------------------------------------


def themes() -> list[dict[str, str]]:
    """Return the colours of each theme in the style sheet of a picture."""

    rules = re.findall(r"\.spmdsim\{(--ink[^;]*(?:;--[^;}]*)*)", figure(MESH).svg)
    return [dict(pair.split(":") for pair in rule.split(";") if pair.startswith("--")) for rule in rules]


def inks() -> list[str]:
    """Return the 8 colours of lines, in the order in which a plot uses them."""
    lines = tuple(Line(f"line {k}", ((1, 1), (2, 2))) for k in range(9))
    colours = re.findall(
        r'<path d="[^"]*" stroke="(#\w+)"', "".join(plot_canvas(Plot("", "", "", lines)).parts)
    )
    assert len(colours) == 9 and colours[8] == colours[0] and len({*colours}) == 8
    return colours[:8]


def test_words_have_contrast_on_every_background():
    for fill, letters in fills():
        assert contrast(fill, letters) >= 4.5, fill
    palettes = themes()
    light, dark = palettes[0], palettes[1]
    assert light != dark and light == palettes[-1]  # The print theme is the light one.
    assert all(theme in (light, dark) for theme in palettes)
    for theme in (light, dark):
        for name in ("--ink", "--faint", "--bad"):
            assert contrast(theme[name], theme["--ground"]) >= 4.5, (name, theme)
        for ink in inks():
            assert contrast(ink, theme["--ground"]) >= 2.4, (ink, theme)


#: Machado, Oliveira and Fernandes (2009), severity 1, on linear light: no red cones, and no green cones.
BLIND = {
    "protan": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deutan": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
}


@pytest.mark.parametrize("kind", BLIND)
def test_fills_differ_for_colour_blind_eyes(kind):
    perceived = [np.cbrt(np.clip(np.array(BLIND[kind]) @ linear(fill), 0, 1)) for fill, _ in fills()]
    smallest_difference = min(float(np.abs(a - b).max()) for a, b in itertools.combinations(perceived, 2))
    assert smallest_difference > 0.05


# -- content --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "shape"),
    [
        (MESH("tp", "dp"), (8, 6)),
        (MESH("dp"), (7,)),
        (Mesh((2, 2, 2), ("a", "b", "c"))("a", ("c", "b"), None), (4, 6, 8)),
    ],
)
def test_a_layout_shows_the_box_of_each_rank(layout, shape):
    """The box of a rank in the picture has the elements that the layout gives the rank."""
    boxes = dict(
        re.findall(
            r"rank (\d+) at .*?: shard #\d+ = (\[.*?\])$",
            "\n".join(titles(figure(layout, shape=shape).svg)),
            re.M,
        )
    )
    assert len(boxes) == layout.mesh.size
    full_array = np.arange(np.prod(shape)).reshape(shape)
    for rank, box in boxes.items():
        picked = full_array[
            tuple(slice(*map(int, interval.split(":"))) for interval in box.strip("[]").split(", "))
        ]
        assert np.array_equal(picked, full_array[layout.slices(shape, int(rank))])


def test_a_layout_of_three_dims_is_a_block_with_every_shard():
    layout, shape = Mesh((2, 2, 3), ("a", "b", "c"))("c", ("a", "b"), None), (6, 8, 5)
    shard_titles = titles(figure(layout, shape=shape).svg)
    for rank in range(12):
        box = ", ".join(f"{s.start}:{s.stop}" for s in layout.slices(shape, rank))
        # The block shows its front, its upper and its right side. A slice shows it once more, in full.
        assert shard_titles.count(f"shard #{layout.shard_index(rank)}, [{box}]: rank {rank}") == 4


NETWORKS = {
    "ring": 8, "torus:3x4": 12, "torus:2x3x3": 18, "fat_tree:leaf=4,over=2": 16, "fat_tree:down=2x3x4,up=1x2x3": 24,
    "dragonfly:groups=9,routers=4,hosts=2": 72, "dragonfly:groups=1": 8, "dragonfly:groups=2,routers=4,hosts=2": 16,
    "flat": 5, "nodes:4": 12,
}  # fmt: skip


@pytest.mark.parametrize("text", NETWORKS)
def test_a_network_is_drawn_with_every_link_and_no_hidden_rank(text):
    network = parse_topology(text, NETWORKS[text], Machine.laptop())
    image = figure(network).svg
    boxes = re.findall(
        r"<title>(?:rank|switch) [^<:]*</title><rect[^>]* "
        r'x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"',
        image.partition("links between")[0],
    )
    centres = [(x + width / 2, y + height / 2) for x, y, width, height in (map(float, box) for box in boxes)]
    assert len(centres) >= network.ranks
    for (x1, y1), (x2, y2) in itertools.combinations(centres, 2):
        assert abs(x1 - x2) >= 22 or abs(y1 - y2) >= 18
    all_titles = {*titles(image)}
    assert {f"rank {rank}" for rank in range(network.ranks)} <= all_titles
    senders_and_receivers = np.divmod(np.arange(network.ranks**2), network.ranks)
    pairs = {
        (min(a, b), max(a, b))
        for a, b in map(network.ends, np.unique(network.routes(*senders_and_receivers).links).tolist())
    }
    drawn = {line.partition(":")[0] for line in all_titles if " - " in line}
    assert {f"{a} - {b}" for a, b in pairs} <= drawn


def test_larger_networks_have_a_note_in_place_of_links():
    for text, ranks in (("torus:16x16", 256), ("torus:2x2x2x2", 16)):
        image = figure(parse_topology(text, ranks, Machine.laptop())).svg
        assert (
            "at most 80 ranks in at most three dims are drawn" in image and "links between two ranks" in image
        )


def test_names_of_points_overlap_neither_each_other_nor_points():
    points = [(100, 1), (101, 1.01), (102, 1.02), (1000, 1), (1001, 5), (100, 5)]
    lines = tuple(Line(f"the layout number {k}", (point,)) for k, point in enumerate(points))
    canvas = plot_canvas(Plot("t", "x", "y", lines), height=300)
    words = re.findall(r'<text x="([\d.]+)" y="([\d.]+)">the layout', "".join(canvas.parts))
    inside = [(float(x), float(y)) for x, y in words if float(x) < canvas.width - 300]
    assert len(inside) >= 5  # A name without room is in the legend alone.
    for (x1, y1), (x2, y2) in itertools.combinations(inside, 2):
        assert abs(x1 - x2) >= 19 * 7 or abs(y1 - y2) >= 14
    for x, y in inside:
        for at in re.findall(
            r'<circle cx="([\d.]+)" cy="([\d.]+)" r="3.5"[^>]*><title', "".join(canvas.parts)
        ):
            cx, cy = map(float, at)
            assert not (x < cx < x + 19 * 7 and y - 10 < cy < y), (x, y, at)


def test_numbers_of_the_horizontal_axis_do_not_touch():
    points = ((54 << 10, 1e-6), (167 << 10, 2e-6))
    canvas = plot_canvas(Plot("", "bytes", "time", (Line("one line with a long name", points),)), 600, 300)
    middles = re.findall(
        r'<text x="([\d.]+)" y="[\d.]+" text-anchor="middle">(\d+ KiB)', "".join(canvas.parts)
    )
    ends = [(float(x) - 3.6 * len(words), float(x) + 3.6 * len(words)) for x, words in middles]
    assert len(ends) >= 3 and all(a[1] + 4 <= b[0] for a, b in itertools.pairwise(ends))


def test_a_world_without_tuned_steps_has_no_table():
    assert not figure(pictured("tuned steps")).parts


def test_a_step_shows_the_bytes_of_each_message():
    """The bytes that a rank receives in the picture are the bytes that the step counts."""
    found_plan = plan(MESH("dp", "tp"), MESH(None, "dp"), (8, 8), np.float32)
    for step in found_plan.steps:
        messages = re.findall(
            r"rank (\d+) sends ([\d,]+) bytes to rank (\d+)", "\n".join(titles(figure(step).svg))
        )
        assert len(messages) == 64
        for rank in range(8):
            received = sum(int(size.replace(",", "")) for _, size, to in messages if int(to) == rank)
            assert received == step.nbytes(rank, 4)


def test_boxes_of_a_plan_come_from_their_owners():
    src, dst, shape = MESH("dp", "tp"), MESH("tp", "dp"), (8, 8)
    image = figure(plan(src, dst, shape, np.float32)).svg
    pairs = {tuple(map(int, pair)) for pair in re.findall(r">(\d)→(\d)<", image)}
    owners = np.empty(shape, int)
    for rank in range(8):
        owners[src.slices(shape, rank)] = rank
    expected = {
        (int(a), rank) for rank in range(8) for a in np.unique(owners[dst.slices(shape, rank)]) if a != rank
    }
    assert pairs == expected


def test_each_sender_of_a_plan_has_one_colour():
    """Boxes and tables of bytes have one colour per rank, also if ranks send nothing. Layouts have none."""
    source, target = Mesh((2, 2), ("a", "b"), (4, 5, 6, 7)), Mesh((2, 2), ("a", "b"))
    image = figure(plan(source("a", "b"), target("b", "a"), (8, 8), np.float32)).svg
    boxes = re.findall(r'fill="(#\w+)" stroke="var\(--ground\)"/>(?:(?!<rect).)*>(\d)→\d<', image)
    table = re.findall(r'rank (\d) sends [1-9]\d* bytes to rank \d</title><rect[^>]* fill="(#\w+)"', image)
    assert len(boxes) == len(table) == 4
    assert {(rank, fill) for fill, rank in boxes} == {*table}
    layouts = re.findall(r"<title>[^<]* over a=2 b=2[^<]*</title><rect[^>]*>", image)
    assert len(layouts) == 2 and not any('fill="#' in box for box in layouts)


def test_the_ring_has_chunk_numbers_and_a_legend():
    text = "".join(ET.fromstring(figure(pictured("schedule")).svg).itertext())
    assert (
        all(f"+{chunk}" in text for chunk in range(4))
        and "new in this round" in text
        and "dashed: copied" in text
    )
    assert "rounds          6  (lower bound 2)" in text and "after round 5" in text


def test_a_simulated_run_shows_the_waits_of_ranks():
    lines = titles(figure(pictured("simulated run")).svg)
    waits = [line for line in lines if line.startswith("Recv") and "waits 10 s" in line]
    assert len(waits) == 2 * 3  # The bar and its name have a title each.


def test_a_search_shows_the_axes_that_split_each_dim():
    result = pictured("search")
    lines = titles(figure(result).svg)
    for operator in result.graph.operators:
        (layout, *_) = operator.bound.output_layouts(result.strategy(operator.name))
        for factor, axes in result.strategy(operator.name).splits:
            for axis in axes:
                # A dim without a letter is named by its number in the result.
                dims = [dim for dim, entry in enumerate(layout.dims) if axis in entry]
                words = f"dim {dims[0]}" if factor.startswith(".") else factor
                assert f"{axis} splits {words} of {operator.name}" in lines
    assert any(line.startswith("found: ") for line in lines)
    # Colours stand for shares of the time alone. No cell of a factor and no point of the plot has one of them.
    image = figure(result).svg
    cells = re.findall(r"<title>\w+ splits [^<]*</title>((?:<rect[^>]*>)+)", image)
    assert len(cells) > 8 and not any(fill in cell for cell in cells for fill, _ in fills())
    bars = {re.search(rf'<rect[^>]* fill="(#\w+)"[^>]*><title>[^<]*: {name} ', image) for name in PARTS}
    fill_numbers = {fill: number for number, (fill, _) in enumerate(fills())}
    shares = {fill_numbers[bar[1]] for bar in bars if bar}
    points = {inks().index(ink) for ink in re.findall(r'<circle[^>]* fill="(#\w+)"', image)}
    assert len(shares) >= 2 and len(points) >= 3 and not shares & points
    has_equal_axis = any("is the same along" in line for line in lines)
    assert (
        "· the same along the axis" in figure(result).svg
    ) == has_equal_axis  # The legend names the mark if the picture has one.


def test_notebooks_get_the_picture_by_show(monkeypatch):
    """``show`` displays HTML in a notebook."""
    from rich.console import Console

    shown: list[str] = []
    monkeypatch.setattr("spmdsim.printing.console", lambda: Console(force_jupyter=True, file=io.StringIO()))
    monkeypatch.setattr(sys.modules["spmdsim.figures.show"], "_display_html", shown.append)
    show(MESH)
    assert shown == [figure(MESH).html]


def test_the_code_for_pictures_is_imported_on_first_use():
    import subprocess

    code = "import sys, spmdsim; spmdsim.Mesh, spmdsim.Tensor, spmdsim.matmul; print('spmdsim.figures' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"


# -- files ----------------------------------------------------------------------------------------------

COMMANDS = {
    "layout": ("layout", "--mesh", "dp=2,tp=4", "--dims", "dp,tp", "--shape", "8,8"),
    "operator": (
        "layout",
        "--op",
        "matmul",
        "--shard",
        "((2,4),(4,1))",
        "--shapes",
        "(32,784),(784,512)",
        "-n",
        "8",
    ),
    "paddle": ("layout", "--split", "linear", "--shape", "8,8", "--axis", "1", "-n", "2"),
    "plan": ("plan", "--mesh", "dp=2,tp=4", "--src", "dp,tp", "--dst", "tp,dp", "--shape", "8,8"),
    "show": ("collective", "show", "all_reduce", "ring", "-n", "4"),
    "diff": ("collective", "diff", "all_reduce", "ring", "rabenseifner", "-n", "4"),
    "predict": ("collective", "predict", "all_reduce", "-n", "4", "-b", "64", "-e", "4K"),
    "search": ("search", "--program", "mlp", "--layers", "1", "--hidden", "16", "-n", "2"),
    "pareto": ("search", "--program", "mlp", "--layers", "1", "--hidden", "16", "-n", "2", "--pareto"),
    "run": ("run", "--world", "lockstep", "-n", "2", "--only", "matmul", "--shape", "4,4,4"),
    "train": ("train", "--world", "lockstep", "-n", "2", "--steps", "1", "--batch", "8"),
    "simulate": ("simulate", "-n", "2"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_write_files_without_references_to_other_files(name, tmp_path, capfd):
    image, page, words = tmp_path / "x.svg", tmp_path / "x.html", COMMANDS[name]
    files = ("--svg", str(image), "--html", str(page))
    if name == "simulate":
        program = tmp_path / "program.py"
        program.write_text("from mpi4py import MPI\nMPI.COMM_WORLD.Barrier()\n")
        files += (str(program),)
    assert main([*words, *files]) == 0, capfd.readouterr()
    ET.fromstring(image.read_text())
    text = page.read_text()
    assert text.startswith("<!DOCTYPE html>") and 'lang="en"' in text and "<title>" in text
    for one in (image.read_text(), text):
        assert not re.search(r"<script|src=|href=|https?://(?!www\.w3\.org)", one)
    assert main([*words, "--svg", str(tmp_path / "no" / "x.svg"), *files[4:]]) == 2
    assert "cannot write" in capfd.readouterr().err


def test_figures_have_tables_for_screen_readers():
    drawn = figure(pictured("search"))
    assert isinstance(drawn, Figure)
    assert '<th scope="col"' in drawn.html and "<caption>comparison</caption>" in drawn.html


def test_a_picture_of_a_tensor_moves_no_values():
    """A picture reads the layout and no values."""
    from spmdsim import record

    tensor = Tensor.from_global(np.ones((4, 4)), Mesh((2,), ("a",))("a", None), LockStep(2))
    with record() as trace:
        tensor._repr_html_()
    assert not len(trace)


@pytest.mark.parametrize(
    ("name", "size"), [("ring", 4), ("ring", 8), ("recursive_doubling", 8), ("bruck", 8)]
)
def test_words_beside_arrows_do_not_overlap(name, size):
    story = unroll(schedule_of("all_to_all" if name == "bruck" else "all_reduce", name, size))
    image = figure(story).svg
    boxes = [
        tuple(map(float, box))
        for box in re.findall(
            r'class="ground" x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="(13)"', image
        )
    ]
    assert len(boxes) == sum(map(len, story.steps))
    for (x1, y1, width1, height), (x2, y2, width2, _) in itertools.combinations(boxes, 2):
        assert x1 + width1 <= x2 + 0.2 or x2 + width2 <= x1 + 0.2 or abs(y1 - y2) >= height - 0.2
