"""Copies and addends: ranks that wait for a reduction never look like ranks that own the same values."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET
from typing import Any

import numpy as np
import pytest
from drawn_words import contrast, linear, titles, words_of

from spmdsim import LockStep, Mesh, Tensor, matmul, plan, show
from spmdsim.cli.main import main
from spmdsim.core import REDUCE_OPS
from spmdsim.figures import figure
from spmdsim.figures.canvas import FILLS, HATCH_OPACITY, Canvas, svg
from spmdsim.layout.addends import partial_reduction

MESH = Mesh((2, 4), ("dp", "tp"))
CUBE = Mesh((2, 2, 2), ("a", "b", "c"))
COPIES = re.compile(r"cop(y|ies) of the same|hold the same")


def words(image: str) -> str:
    return " ".join("".join(ET.fromstring(image).itertext()).split())


def product() -> tuple[Tensor, Tensor]:
    """A product of which every rank has an addend, and the same product with copies."""
    world = LockStep(8)
    x = Tensor.from_global(np.ones((32, 12)), MESH("dp", "tp"), world)
    y = matmul(x, Tensor.from_global(np.ones((12, 8)), MESH("tp", None), world))
    return y, y.to(MESH("dp", None))


def test_a_partial_product_does_not_look_like_the_finished_one(capsys: pytest.CaptureFixture[str]):
    partial, finished = product()
    assert partial.layout.partial and not finished.layout.partial
    for form in ("svg", "html"):
        pending, done = (getattr(figure(tensor), form) for tensor in (partial, finished))
        assert not COPIES.search(pending) and COPIES.search(done)
        assert pending.count('class="hatching"') == 8 + 2 and "hatching" not in done
        assert all(f">+{k} of 4<" in pending for k in (1, 2, 3, 4)) and ">+" not in done
        assert ">#0 = sum of 4<" in pending and ">ranks 0+1+2+3<" in pending and ">ranks 0,1,2,3<" in done
    told = titles(figure(partial).svg)
    assert "rank 6 at dp=1 tp=2: addend 3 of 4 of shard #1 = [16:32, 0:8]" in told
    assert "shard #1, [16:32, 0:8]: sum of 4 on ranks 4+5+6+7" in told
    show(partial)
    pending = capsys.readouterr().out
    show(finished)
    done = capsys.readouterr().out
    assert "6:1+3" in pending and "#1 = sum of 4" in pending and "ranks 4+5+6+7" in pending
    assert "not copies" in pending and not re.search(r"\d\+\d", done)


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
def test_every_reduction_has_its_word_and_every_rank_its_number(mesh, dims, axes, shape, op):
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
        free = [str(c) for axis, c in zip(mesh.axes, mesh.coords(int(rank))) if axis not in axes]
        numbers.setdefault(tuple(free), set()).add(number)
    wanted = {str(k + 1) for k in range(count)}
    assert all(one == wanted for one in numbers.values())
    sign = "+1 of" if op == "sum" else f"{op} 1 of"
    assert sign in words(image) and f"= {op} of {count}" in words(image)


def test_plans_say_which_states_are_addends(capsys: pytest.CaptureFixture[str]):
    """The source of a reduction is hatched and says of how many addends each shard is the sum; its target is not."""
    moved = plan(MESH("dp", None, partial="tp"), MESH("dp", None), (32, 8), np.float32)
    image = figure(moved).svg
    assert image.count('class="hatching"') == 1 and ">sum of 4 addends<" in image
    kept = plan(CUBE("a", None, partial="c"), CUBE(None, "a", partial="c"), (8, 8), np.float32)
    image = figure(kept).svg
    assert image.count('class="hatching"') == len(kept.states) == 2
    assert "what moves are addends" in words(image)
    show(kept)
    assert "what moves are addends" in capsys.readouterr().out
    copied = plan(CUBE("a", None), CUBE(None, "a"), (8, 8), np.float32)
    assert "hatching" not in figure(copied).svg and "addends" not in figure(copied).svg


def test_axes_of_one_rank_are_pending_in_name_only():
    mesh = Mesh((2, 1), ("a", "b"))
    assert partial_reduction(mesh("a", partial="b")) is None
    assert "hatching" not in figure(mesh("a", partial="b"), shape=(4,)).svg


def test_the_command_says_addends_in_every_table(capsys: pytest.CaptureFixture[str]):
    line = ["layout", "--mesh", "dp=2,tp=4", "--dims", "S(0)P(sum)", "--shape", "32,8"]
    assert main(line) == 0
    told = capsys.readouterr().out
    assert "ranks with the same shard" not in told and not COPIES.search(told)
    assert "2 shards on 8 ranks, each the sum of 4 addends: ranks of one # own different ones" in told
    assert re.findall(r"\+(\d) of 4", told) == ["1", "2", "3", "4"] * 2
    assert main([*line, "--json"]) == 0
    report: Any = __import__("json").loads(capsys.readouterr().out)
    assert report["pending"] == {"reduction": "sum", "axes": ["tp"], "addends": 4}
    assert [rank["addend"] for rank in report["ranks"]] == [1, 2, 3, 4] * 2


# -- hatching can be seen and crosses no words ---------------------------------------------------------------


def blended(over: str, under: str, opacity: float) -> str:
    """A colour that lies half transparent on another."""
    full = [one if len(one) == 7 else "#" + "".join(2 * c for c in one[1:]) for one in (over, under)]
    parts = [[int(one[i : i + 2], 16) for i in (1, 3, 5)] for one in full]
    return "#" + "".join(f"{round(opacity * a + (1 - opacity) * b):02x}" for a, b in zip(*parts))


def test_hatching_is_seen_on_every_fill():
    for fill, letters in FILLS:
        line = blended(letters, fill, HATCH_OPACITY)
        assert contrast(line, fill) >= 1.5, fill
        assert float(np.abs(linear(line) - linear(fill)).max()) > 0.02, fill


def boxes_of(image: str, kind: str) -> list[tuple[float, float, float, float]]:
    pattern = (
        rf'<rect class="{kind}" x="([-\d.]+)" y="([-\d.]+)" width="([\d.]+)" height="([\d.]+)" fill="([^"]+)"'
    )
    return [
        (x, y, x + w, y + h) for x, y, w, h in (map(float, one[:4]) for one in re.findall(pattern, image))
    ]


@pytest.mark.parametrize("index", [0, 5, 13, 20, 31, None])
@pytest.mark.parametrize("hatched", [False, True])
def test_no_line_crosses_words(index: int | None, hatched: bool):
    """Stripes and hatching are drawn before the plates of a cell's words, and plates before the words."""
    canvas = Canvas()
    canvas.cell(10, 10, 80, 60, ["rank 131", "#131", "+3 of 4"], index, hatched=hatched)
    lined = hatched or (index or 0) >= len(FILLS)
    drawn = "".join(canvas.parts)
    plates = boxes_of(drawn, "plate")
    assert len(plates) == 3 * lined
    if not lined:
        return
    assert max(m.start() for m in re.finditer("<path", drawn)) < drawn.index('class="plate"')
    for word, left, right, top, low in words_of(ET.fromstring(svg(canvas, "t", margin=0))):
        assert any(a <= left and right <= c and b <= top + 1 and low <= d + 1 for a, b, c, d in plates), word


def test_stripes_and_hatching_differ():
    """A cell of the tenth shard is striped, an addend is hatched: no two of these have the same lines."""
    looks = []
    for index, hatched in itertools.product((0, 8, 16, 24), (False, True)):
        canvas = Canvas()
        canvas.cell(0, 0, 60, 40, [], index, hatched=hatched)
        looks.append(re.sub(r"<title>.*?</title>", "", "".join(canvas.parts)))
    assert len({*looks}) == len(looks) == 8
