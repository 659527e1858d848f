"""Pictures: there is one of everything that the package returns, everybody can read it, and it says what is true."""

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
from drawn_words import contrast, linear, titles
from pictured_values import MESH, VALUES, pictured

from spmdsim import LockStep, Mesh, Tensor, plan, show
from spmdsim.auto_parallel.search_report import PARTS
from spmdsim.cli.main import main
from spmdsim.collectives import schedule_of, unroll
from spmdsim.cost import Machine, parse_topology
from spmdsim.errors import InputError, UsageTypeError
from spmdsim.figures import Figure, figure
from spmdsim.figures.canvas import FILLS, INKS, MOST_BYTES, STYLE
from spmdsim.figures.cost_figures import positions
from spmdsim.figures.figures import DRAWN
from spmdsim.figures.plot import Line, Plot, plot_canvas
from spmdsim.figures.schedule_figures import space_time
from spmdsim.pictured import Pictured
from spmdsim.worlds.trace.last_calls import LastCall, document, write

PUBLIC = (
    "spmdsim", "spmdsim.core", "spmdsim.layout", "spmdsim.collectives", "spmdsim.cost", "spmdsim.redistribution",
    "spmdsim.worlds.trace", "spmdsim.worlds", "spmdsim.arrays", "spmdsim.ops", "spmdsim.nn", "spmdsim.auto_parallel",
    "spmdsim.simulation", "spmdsim.cases", "spmdsim.local", "spmdsim.array_api", "spmdsim.figures.explore",
)  # fmt: skip


def returned(value: object) -> list[type]:
    """A public class, or the classes of the package that a public function says it returns."""
    if inspect.isclass(value):
        return [value]
    if not inspect.isfunction(value):
        return []
    try:
        said = typing.get_type_hints(value).get("return")
    except NameError:  # a name that only type checkers know
        return []
    return [kind for kind in (said, *typing.get_args(said)) if inspect.isclass(kind)]


def public_types() -> dict[type, str]:
    kinds: dict[type, str] = {}
    for module in map(importlib.import_module, PUBLIC):
        for name in getattr(module, "__all__", ()):
            for kind in returned(getattr(module, name)):
                own = kind.__module__.startswith("spmdsim.") and not issubclass(kind, BaseException)
                if own and not getattr(kind, "_is_protocol", False):
                    kinds.setdefault(kind, f"{module.__name__}.{name}")
    return kinds


def test_every_public_type_has_a_picture_of_its_own():
    kinds = public_types()
    assert len(kinds) > 60
    without = {
        place: kind.__qualname__
        for kind, place in kinds.items()
        if not issubclass(kind, Pictured)
        and not hasattr(kind, "_fields")  # named tuples have no base but tuple
    }
    # What notebooks show of these is up to their own methods: a stack of integers, a base class of settings.
    assert not without, without


def test_every_kind_with_a_figure_of_its_own_is_tried():
    drawn = {
        f"{kind.__module__}.{kind.__qualname__}" for name in VALUES for kind in type(pictured(name)).__mro__
    }
    assert {*DRAWN} <= drawn
    assert all(kind.partition(".")[0] == "spmdsim" for kind in DRAWN)


@pytest.mark.parametrize("name", VALUES)
def test_a_picture_is_sound_and_a_repr_is_short(name, capsys):
    value = pictured(name)
    drawn = figure(value)
    image, page = drawn.svg, drawn.html
    root = ET.fromstring(image)
    assert root.get("role") == "img" and root.get("aria-label")
    title = next(root.iter("{http://www.w3.org/2000/svg}title")).text
    assert title and title == root.get("aria-label")
    assert len(image) <= MOST_BYTES and len(page) <= MOST_BYTES
    assert "prefers-color-scheme" in image and "@media print" in image
    for text in (image, page):
        assert not re.search(r"nan|inf\b|<script|href=|@import|url\(", re.sub(r">[^<]*<", "><", text))
    assert not re.search(r"frozenset|ndarray|&lt;\w+|\w\(\w+=", page)  # people read it, not Python
    width, height = map(float, root.get("viewBox", "").split()[2:])
    assert 0 < width < 4000 and 0 < height < 4000
    assert " at 0x" not in repr(value)
    assert len(repr(value)) <= 200 or isinstance(value, list), repr(value)
    if not isinstance(value, list):
        assert value._repr_svg_() == image and value._repr_html_() == page
        bundle = value._repr_mimebundle_()
        assert bundle["text/html"] == page and bundle["text/plain"]
    show(value)
    told = capsys.readouterr().out
    assert told.strip() and len(told) < 20_000


@pytest.mark.parametrize("name", VALUES)
def test_text_is_plain_where_the_terminal_knows_ascii_only(name, monkeypatch):
    """As under ``LC_ALL=C``, where Python lets nothing else through."""
    stream = io.TextIOWrapper(io.BytesIO(), "ascii", errors="surrogateescape")
    monkeypatch.setattr(sys, "stdout", stream)
    show(pictured(name))
    stream.flush()
    assert stream.buffer.getvalue().isascii() and stream.buffer.getvalue().strip()


def test_what_is_not_the_packages_is_refused():
    for value in (3, "ring", [], object(), {"a": 1}):
        with pytest.raises(UsageTypeError, match="no picture of"):
            show(value)


def test_a_picture_that_would_be_too_large_is_refused(monkeypatch):
    monkeypatch.setattr("spmdsim.figures.figures.MOST_BYTES", 500)
    with pytest.raises(InputError, match="must have at most 500 bytes"):
        figure(MESH).svg


# -- colours --------------------------------------------------------------------------------------------


def themes() -> list[dict[str, str]]:
    rules = re.findall(r"\.spmdsim\{(--ink[^;]*(?:;--[^;}]*)*)", STYLE)
    return [dict(pair.split(":") for pair in one.split(";") if pair.startswith("--")) for one in rules]


def test_words_can_be_read_on_every_ground():
    for fill, letters in FILLS:
        assert contrast(fill, letters) >= 4.5, fill
    palettes = themes()
    light, dark = palettes[0], palettes[1]
    assert light != dark and light == palettes[-1]  # in print, too
    assert all(theme in (light, dark) for theme in palettes)
    for theme in (light, dark):
        for name in ("--ink", "--faint", "--bad"):
            assert contrast(theme[name], theme["--ground"]) >= 4.5, (name, theme)
        for ink in INKS:
            assert contrast(ink, theme["--ground"]) >= 2.4, (ink, theme)


#: Machado, Oliveira and Fernandes (2009), severity 1, on linear light: no red cones, no green, no blue ones.
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
    seen = [np.cbrt(np.clip(np.array(BLIND[kind]) @ linear(fill), 0, 1)) for fill, _ in FILLS]
    least = min(float(np.abs(a - b).max()) for a, b in itertools.combinations(seen, 2))
    assert least > 0.05


# -- truth ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "shape"),
    [
        (MESH("tp", "dp"), (8, 6)),
        (MESH("dp"), (7,)),
        (Mesh((2, 2, 2), ("a", "b", "c"))("a", ("c", "b"), None), (4, 6, 8)),
    ],
)
def test_a_tensor_says_who_holds_which_box(layout, shape):
    """Each rank of the picture has the elements that the layout gives it."""
    told = dict(
        re.findall(
            r"rank (\d+) at .*?: shard #\d+ = (\[.*?\])$",
            "\n".join(titles(figure(layout, shape=shape).svg)),
            re.M,
        )
    )
    assert len(told) == layout.mesh.size
    whole = np.arange(np.prod(shape)).reshape(shape)
    for rank, box in told.items():
        picked = whole[tuple(slice(*map(int, part.split(":"))) for part in box.strip("[]").split(", "))]
        assert np.array_equal(picked, whole[layout.slices(shape, int(rank))])


def test_three_dims_are_a_block_with_every_piece():
    layout, shape = Mesh((2, 2, 3), ("a", "b", "c"))("c", ("a", "b"), None), (6, 8, 5)
    told = titles(figure(layout, shape=shape).svg)
    for rank in range(12):
        box = ", ".join(f"{s.start}:{s.stop}" for s in layout.slices(shape, rank))
        # Its front, its upper and its right side; and once more in the slice that no other piece hides.
        assert told.count(f"shard #{layout.shard_index(rank)}, [{box}]: rank {rank}") == 4


NETWORKS = {
    "ring": 8, "torus:3x4": 12, "torus:2x3x3": 18, "fat_tree:leaf=4,over=2": 16, "fat_tree:down=2x3x4,up=1x2x3": 24,
    "dragonfly:groups=9,routers=4,hosts=2": 72, "dragonfly:groups=1": 8, "dragonfly:groups=2,routers=4,hosts=2": 16,
    "flat": 5, "nodes:4": 12,
}  # fmt: skip


@pytest.mark.parametrize("text", NETWORKS)
def test_a_network_is_drawn_with_every_link_and_nothing_hides_a_rank(text):
    network = parse_topology(text, NETWORKS[text], Machine.laptop())
    places = positions(network)
    for (_, (x1, y1)), (_, (x2, y2)) in itertools.combinations(places.items(), 2):
        assert abs(x1 - x2) >= 22 or abs(y1 - y2) >= 18
    told = {*titles(figure(network).svg)}
    assert {f"rank {rank}" for rank in range(network.ranks)} <= told
    every = np.divmod(np.arange(network.ranks**2), network.ranks)
    pairs = {
        (min(a, b), max(a, b)) for a, b in map(network.ends, np.unique(network.routes(*every).links).tolist())
    }
    drawn = {line.partition(":")[0] for line in told if " - " in line}
    assert {f"{a} - {b}" for a, b in pairs} <= drawn


def test_larger_networks_say_why_no_link_is_drawn():
    for text, ranks in (("torus:16x16", 256), ("torus:2x2x2x2", 16)):
        image = figure(parse_topology(text, ranks, Machine.laptop())).svg
        assert (
            "at most 80 ranks in at most three dims are drawn" in image and "links between two ranks" in image
        )


def test_names_of_points_hide_neither_each_other_nor_points():
    points = [(100, 1), (101, 1.01), (102, 1.02), (1000, 1), (1001, 5), (100, 5)]
    lines = tuple(Line(f"the layout number {k}", (point,)) for k, point in enumerate(points))
    canvas = plot_canvas(Plot("t", "x", "y", lines), height=300)
    words = re.findall(r'<text x="([\d.]+)" y="([\d.]+)">the layout', "".join(canvas.parts))
    inside = [(float(x), float(y)) for x, y in words if float(x) < canvas.width - 300]
    assert len(inside) >= 5  # where there is no room, the legend alone says it
    for (x1, y1), (x2, y2) in itertools.combinations(inside, 2):
        assert abs(x1 - x2) >= 19 * 7 or abs(y1 - y2) >= 14
    for x, y in inside:
        for at in re.findall(
            r'<circle cx="([\d.]+)" cy="([\d.]+)" r="3.5"[^>]*><title', "".join(canvas.parts)
        ):
            cx, cy = map(float, at)
            assert not (x < cx < x + 19 * 7 and y - 10 < cy < y), (x, y, at)


def test_a_step_says_what_goes_from_whom_to_whom():
    """The bytes that a receiver gets in the picture are those the step counts, and values come out right by them."""
    moved = plan(MESH("dp", "tp"), MESH(None, "dp"), (8, 8), np.float32)
    for step in moved.steps:
        told = re.findall(
            r"rank (\d+) sends ([\d,]+) bytes to rank (\d+)", "\n".join(titles(figure(step).svg))
        )
        assert len(told) == 64
        for rank in range(8):
            received = sum(int(size.replace(",", "")) for _, size, to in told if int(to) == rank)
            assert received == step.nbytes(rank, 4)


def test_boxes_of_a_plan_come_from_ranks_that_hold_them():
    src, dst, shape = MESH("dp", "tp"), MESH("tp", "dp"), (8, 8)
    image = figure(plan(src, dst, shape, np.float32)).svg
    pairs = {tuple(map(int, pair)) for pair in re.findall(r">(\d)→(\d)<", image)}
    holders = np.empty(shape, int)
    for rank in range(8):
        holders[src.slices(shape, rank)] = rank
    wanted = {
        (int(a), rank) for rank in range(8) for a in np.unique(holders[dst.slices(shape, rank)]) if a != rank
    }
    assert pairs == wanted


def test_a_colour_of_a_plan_is_one_sender():
    """Boxes and tables of bytes have one colour for a rank, also if ranks send nothing; layouts have none."""
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


def test_ranks_of_a_simulated_run_wait():
    told = titles(figure(pictured("simulated run")).svg)
    waits = [line for line in told if line.startswith("Recv") and "waits 10 s" in line]
    assert len(waits) == 2 * 3  # the bar, and its name on it


def test_a_search_says_which_axis_splits_what():
    result = pictured("search")
    told = titles(figure(result).svg)
    for operator in result.graph.operators:
        (layout, *_) = operator.bound.output_layouts(result.strategy(operator.name))
        for factor, axes in result.strategy(operator.name).splits:
            for axis in axes:
                # Dims without a letter are named by their place in the result: the one that the axis splits there.
                dims = [dim for dim, entry in enumerate(layout.dims) if axis in entry]
                words = f"dim {dims[0]}" if factor.startswith(".") else factor
                assert f"{axis} splits {words} of {operator.name}" in told
    assert any(line.startswith("found: ") for line in told)
    # Colours are shares of the time alone: no cell of a factor and no point of the plot has one of them.
    image = figure(result).svg
    cells = re.findall(r"<title>\w+ splits [^<]*</title>((?:<rect[^>]*>)+)", image)
    assert len(cells) > 8 and not any(fill in cell for cell in cells for fill, _ in FILLS)
    parts = {re.search(rf'<rect[^>]* fill="(#\w+)"[^>]*><title>[^<]*: {part} ', image) for part in PARTS}
    shares = {FILLS.index(next(one for one in FILLS if one[0] == part[1])) for part in parts if part}
    points = {INKS.index(ink) for ink in re.findall(r'<circle[^>]* fill="(#\w+)"', image)}
    assert len(shares) >= 2 and len(points) >= 3 and not shares & points
    alike = any("is the same along" in line for line in told)
    assert (
        "· the same along the axis" in figure(result).svg
    ) == alike  # the legend names the mark where there is one


def test_notebooks_get_the_picture_by_show(monkeypatch):
    """``show`` displays HTML where there is a notebook."""
    from rich.console import Console

    shown: list[str] = []
    monkeypatch.setattr("spmdsim.cli.output.console", lambda: Console(force_jupyter=True, file=io.StringIO()))
    monkeypatch.setattr(sys.modules["spmdsim.figures.show"], "_display_html", shown.append)
    show(MESH)
    assert shown == [figure(MESH).html]


def test_pictures_load_nothing_before_they_are_asked_for():
    import subprocess

    code = "import sys, spmdsim; spmdsim.Mesh, spmdsim.Tensor, spmdsim.matmul; print('spmdsim.figures' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


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
    "list": ("collective", "list", "scan"),
    "check": ("collective", "check", "ring", "-n", "2..4"),
    "doctor": ("doctor", "--no-trial"),
    "calls": ("calls",),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_write_files_that_need_nothing_else(name, tmp_path, capfd):
    image, page, words = tmp_path / "x.svg", tmp_path / "x.html", COMMANDS[name]
    files = ("--svg", str(image), "--html", str(page))
    if name == "simulate":
        program = tmp_path / "program.py"
        program.write_text("from mpi4py import MPI\nMPI.COMM_WORLD.Barrier()\n")
        files += (str(program),)
    if name == "calls":
        calls = [LastCall(rank, (0, 1), "w", 0, "a", "barrier", "x.py:3", 5, 9) for rank in (0, 1)]
        write(tmp_path / "calls.json", document(calls, (0, 1), "stopped", 9))
        files += (str(tmp_path / "calls.json"),)
    assert main([*words, *files]) == 0, capfd.readouterr()
    ET.fromstring(image.read_text())
    text = page.read_text()
    assert text.startswith("<!DOCTYPE html>") and 'lang="en"' in text and "<title>" in text
    for one in (image.read_text(), text):
        assert not re.search(r"<script|src=|href=|https?://(?!www\.w3\.org)", one)
    assert main([*words, "--svg", str(tmp_path / "no" / "x.svg"), *files[4:]]) == 2
    assert "cannot write" in capfd.readouterr().err


def test_figures_are_read_aloud_by_tables():
    drawn = figure(pictured("search"))
    assert isinstance(drawn, Figure)
    assert '<th scope="col"' in drawn.html and "<caption>comparison</caption>" in drawn.html


def test_a_tensor_of_ranks_that_are_not_there_is_not_looked_at():
    """A picture reads the layout and no values: nothing is sent for it."""
    from spmdsim import record

    tensor = Tensor.from_global(np.ones((4, 4)), Mesh((2,), ("a",))("a", None), LockStep(2))
    with record() as trace:
        tensor._repr_html_()
    assert not len(trace)


@pytest.mark.parametrize(
    ("name", "size"), [("ring", 4), ("ring", 8), ("recursive_doubling", 8), ("bruck", 8)]
)
def test_words_beside_arrows_do_not_lie_on_each_other(name, size):
    story = unroll(schedule_of("all_to_all" if name == "bruck" else "all_reduce", name, size))
    drawn = "".join(space_time(story).parts)
    boxes = [
        tuple(map(float, box))
        for box in re.findall(
            r'class="ground" x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="(13)"', drawn
        )
    ]
    assert len(boxes) == sum(map(len, story.steps))
    for (x1, y1, wide1, high), (x2, y2, wide2, _) in itertools.combinations(boxes, 2):
        assert x1 + wide1 <= x2 + 0.2 or x2 + wide2 <= x1 + 0.2 or abs(y1 - y2) >= high - 0.2
