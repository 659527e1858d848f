"""Pictures of ranks with addends of a partial sum never look like pictures of ranks with copies."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import Any

import numpy as np
import pytest
from drawn_words import SVG, contrast, linear, titles, words_of

from spmdsim import LockStep, Mesh, Tensor, matmul, plan, show
from spmdsim.cli.main import main
from spmdsim.core import REDUCE_OPS
from spmdsim.figures import figure
from spmdsim.layout.addends import partial_reduction

MESH = Mesh((2, 4), ("dp", "tp"))
CUBE = Mesh((2, 2, 2), ("a", "b", "c"))
COPIES = re.compile(r"cop(y|ies) of the same|hold the same")


def words(image: str) -> str:
    """Return the text of a picture with single spaces."""

    return " ".join("".join(ET.fromstring(image).itertext()).split())


def product() -> tuple[Tensor, Tensor]:
    """Return a product of which every rank has an addend, and the product with copies."""
    world = LockStep(8)
    x = Tensor.from_global(np.ones((32, 12)), MESH("dp", "tp"), world)
    y = matmul(x, Tensor.from_global(np.ones((12, 8)), MESH("tp", None), world))
    return y, y.to(MESH("dp", None))


def test_a_partial_product_does_not_look_like_the_finished_one(capsys: pytest.CaptureFixture[str]):
    partial, finished = product()
    assert partial.layout.partial and not finished.layout.partial
    for format_name in ("svg", "html"):
        partial_text, finished_text = (getattr(figure(tensor), format_name) for tensor in (partial, finished))
        assert not COPIES.search(partial_text) and COPIES.search(finished_text)
        assert partial_text.count('class="hatching"') == 8 + 2 and "hatching" not in finished_text
        assert all(f">+{k} of 4<" in partial_text for k in (1, 2, 3, 4)) and ">+" not in finished_text
        assert (
            ">#0 = sum of 4<" in partial_text
            and ">ranks 0+1+2+3<" in partial_text
            and ">ranks 0,1,2,3<" in finished_text
        )
    lines = titles(figure(partial).svg)
    assert "rank 6 at dp=1 tp=2: addend 3 of 4 of shard #1 = [16:32, 0:8]" in lines
    assert "shard #1, [16:32, 0:8]: sum of 4 on ranks 4+5+6+7" in lines
    show(partial)
    partial_text = capsys.readouterr().out
    show(finished)
    finished_text = capsys.readouterr().out
    assert "6:1+3" in partial_text and "#1 = sum of 4" in partial_text and "ranks 4+5+6+7" in partial_text
    assert "not copies" in partial_text and not re.search(r"\d\+\d", finished_text)


@pytest.mark.parametrize("op", REDUCE_OPS)
@pytest.mark.parametrize(
    ("mesh", "dims", "axes", "shape"),
    [
        (MESH, ("dp", None), ("tp",), (7, 5)),
        (MESH, (None,), ("dp", "tp"), (3,)),
        (MESH, (), ("tp",), ()),
        (CUBE, ("a", None), ("b",), (6, 4)),
        (CUBE, (None, "b", None), ("a", "c"), (4, 6, 5)),
        (CUBE, ("c", None, "a", None), ("b",), (4, 6, 8, 2)),
    ],
)
def test_every_reduction_names_its_operation_and_numbers_its_ranks(mesh, dims, axes, shape, op):
    layout = mesh(*dims, partial=dict.fromkeys(axes, op))
    image = figure(layout, shape=shape).svg
    assert not COPIES.search(image)
    count = int(np.prod([mesh.axis_size(axis) for axis in axes]))
    ranks = re.findall(
        rf"rank (\d+) at [^:]*: (?:addend|contribution) (\d+) of {count}(?: to the {op})? of shard #(\d+)",
        "\n".join(titles(image)),
    )
    assert len(ranks) == mesh.size
    numbers: dict[tuple[str, ...], set[str]] = {}
    for rank, number, shard in ranks:
        assert int(shard) == layout.shard_index(int(rank))
        other_coords = [str(c) for axis, c in zip(mesh.axes, mesh.coords(int(rank))) if axis not in axes]
        numbers.setdefault(tuple(other_coords), set()).add(number)
    expected = {str(k + 1) for k in range(count)}
    assert all(group_numbers == expected for group_numbers in numbers.values())
    sign = "+1 of" if op == "sum" else f"{op} 1 of"
    assert sign in words(image) and f"= {op} of {count}" in words(image)


def test_plans_mark_states_that_are_addends(capsys: pytest.CaptureFixture[str]):
    """The source of a reduction is hatched and shows the number of addends of a shard. Its target is not."""
    reduction_plan = plan(MESH("dp", None, partial="tp"), MESH("dp", None), (32, 8), np.float32)
    image = figure(reduction_plan).svg
    assert image.count('class="hatching"') == 1 and ">sum of 4 addends<" in image
    partial_plan = plan(CUBE("a", None, partial="c"), CUBE(None, "a", partial="c"), (8, 8), np.float32)
    image = figure(partial_plan).svg
    assert image.count('class="hatching"') == len(partial_plan.states) == 2
    assert "what moves are addends" in words(image)
    show(partial_plan)
    assert "what moves are addends" in capsys.readouterr().out
    copy_plan = plan(CUBE("a", None), CUBE(None, "a"), (8, 8), np.float32)
    assert "hatching" not in figure(copy_plan).svg and "addends" not in figure(copy_plan).svg


def test_a_partial_axis_of_one_rank_is_not_hatched():
    mesh = Mesh((2, 1), ("a", "b"))
    assert partial_reduction(mesh("a", partial="b")) is None
    assert "hatching" not in figure(mesh("a", partial="b"), shape=(4,)).svg


def test_the_command_names_addends_in_every_table(capsys: pytest.CaptureFixture[str]):
    line = ["layout", "--mesh", "dp=2,tp=4", "--dims", "S(0)P(sum)", "--shape", "32,8"]
    assert main(line) == 0
    output = capsys.readouterr().out
    assert "ranks with the same shard" not in output and not COPIES.search(output)
    assert "2 shards on 8 ranks, each the sum of 4 addends: ranks of one # own different ones" in output
    assert re.findall(r"\+(\d) of 4", output) == ["1", "2", "3", "4"] * 2
    assert main([*line, "--json"]) == 0
    report: Any = __import__("json").loads(capsys.readouterr().out)
    assert report["pending"] == {"reduction": "sum", "axes": ["tp"], "addends": 4}
    assert [rank["addend"] for rank in report["ranks"]] == [1, 2, 3, 4] * 2


# -- hatching is visible and crosses no words -----------------------------------------------------------------


def blend(over: str, under: str, opacity: float) -> str:
    """Return the colour of a transparent colour on another one."""
    six_digits = [
        colour if len(colour) == 7 else "#" + "".join(2 * c for c in colour[1:]) for colour in (over, under)
    ]
    channels = [[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in six_digits]
    return "#" + "".join(f"{round(opacity * a + (1 - opacity) * b):02x}" for a, b in zip(*channels))


def cells_of(shards: tuple[int, int], hatched: bool) -> list[str]:
    """Return the cell of each rank in the picture of a layout, as SVG; if ``hatched``, ranks have addends."""
    layout = Mesh((*shards, 2), ("a", "b", "c"))("a", "b", partial="c" if hatched else ())
    image = figure(layout, shape=shards).svg
    return re.findall(r"<g><title>rank \d+ at .*?</g>", image)


def test_hatching_is_visible_on_every_fill():
    cells = cells_of((2, 4), hatched=True)
    fills = {re.search(r' fill="(#\w+)"', cell)[1] for cell in cells}
    assert len(cells) == 16 and len(fills) == 8
    for cell in cells:
        fill, letters = (
            re.search(pattern, cell)[1] for pattern in (r' fill="(#\w+)"', r'style="fill:(#\w+)"')
        )
        hatching = re.search(r'class="hatching".*? stroke="(#\w+)" stroke-opacity="([\d.]+)"', cell)
        line = blend(hatching[1], fill, float(hatching[2]))
        assert hatching[1] == letters and contrast(line, fill) >= 1.5, fill
        assert float(np.abs(linear(line) - linear(fill)).max()) > 0.02, fill


def boxes_of(image: str, kind: str) -> list[tuple[float, float, float, float]]:
    """Return the (left, top, right, bottom) of each rectangle of a class in a picture."""

    pattern = (
        rf'<rect class="{kind}" x="([-\d.]+)" y="([-\d.]+)" width="([\d.]+)" height="([\d.]+)" fill="([^"]+)"'
    )
    return [
        (x, y, x + w, y + h)
        for x, y, w, h in (map(float, numbers[:4]) for numbers in re.findall(pattern, image))
    ]


@pytest.mark.parametrize("shards", [(4, 8), (5, 7)], ids=["coloured", "without colours"])
@pytest.mark.parametrize("hatched", [False, True])
def test_no_line_crosses_words(shards: tuple[int, int], hatched: bool):
    """Stripes and hatching are drawn before the plates of a cell's words, and plates before the words."""
    cells, striped_count = cells_of(shards, hatched), 0
    assert len(cells) == 2 * shards[0] * shards[1]
    for cell in cells:
        shard, is_coloured = int(re.search(r">#(\d+)<", cell)[1]), 'fill="#' in cell
        lined = hatched or (is_coloured and shard >= 8)
        plates = boxes_of(cell, "plate")
        boxes = [*words_of(ET.fromstring(cell.replace("<g>", f'<g xmlns="{SVG[1:-1]}">', 1)))]
        assert len(boxes) == 2 + hatched and len(plates) == len(boxes) * lined and ("<path" in cell) == lined
        if lined:
            assert max(m.start() for m in re.finditer("<path", cell)) < cell.index('class="plate"')
            for word, left, right, top, low in boxes:
                assert any(
                    a <= left and right <= c and b <= top + 1 and low <= d + 1 for a, b, c, d in plates
                ), word
        striped_count += is_coloured and shard >= 8
    assert striped_count == (48 if shards == (4, 8) else 0)


def directions(cell: str) -> set[tuple[float, float]]:
    """Return the directions of the lines in a cell, as signs: (1, 1) goes to the right and down."""
    signs = set()
    for line in re.findall(r"M([-\d.]+) ([-\d.]+)([lLhv])([-\d.]+) ?([-\d.]*)", cell):
        (x, y), command, end = map(float, line[:2]), line[2], float(line[3])
        shift = {
            "h": (end, 0.0),
            "v": (0.0, end),
            "l": (end, float(line[4] or 0)),
            "L": (end - x, float(line[4] or 0) - y),
        }[command]
        if any(shift):  # A line at a corner has no length.
            signs.add(tuple(np.sign(shift).tolist()))
    return signs


def test_stripes_and_hatching_differ():
    """The cells of later shards have stripes, cells of addends have hatching. All combinations differ."""
    plain, hatched = ([cells_of((4, 8), hatched)[2 * k] for k in (0, 8, 16, 24)] for hatched in (False, True))
    assert len({re.search(r' fill="(#\w+)"', cell)[1] for cell in (*plain, *hatched)}) == 1
    assert [directions(cell) for cell in plain] == [set(), {(1, 1)}, {(1, 0)}, {(0, 1)}]
    assert [directions(cell) for cell in hatched] == [{(1, -1), *directions(cell)} for cell in plain]
