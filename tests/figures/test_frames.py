"""The words of every picture are inside its frame, and screen readers get a title and a description."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from drawn_words import FONT, SVG, words_of
from pictured_values import VALUES, pictured

from spmdsim.cli.main import main
from spmdsim.figures import figure

LINES = """
layout --mesh averyverylongaxisname=2,another_long_name=3 --dims averyverylongaxisname,another_long_name --shape 2,3
layout --mesh a=64 --dims a --shape 64
layout --mesh a=1 --dims a --shape 1
layout --mesh a=2,b=2,c=2,d=2 --dims a,b,c,d --shape 4,4,4,4
layout --op softmax --shard ((4,1),) --shapes (8,16) -n 4 --attr dim=1
layout --split linear --shape 8,8 --axis 1 -n 2
plan --mesh a=64,b=64 --src a,b --dst b,a --shape 4096,4096
plan --mesh longlonglonglonglong=8 --src longlonglonglonglong,None --dst None,longlonglonglonglong --shape 8,8
plan --mesh a=3,b=5 --src a,b --dst (b,a),None --shape 7,11 --machine cluster
collective show all_to_all bruck -n 16
collective show all_reduce ring -n 1
collective show broadcast pipeline -n 8 --segments 6
collective diff all_reduce ring rabenseifner -n 6
collective predict all_to_all -n 2..1024x2 -b 1K
collective predict broadcast -n 16 --topology torus:4x4
collective predict all_reduce -n 8 --topology ring --links ring
search --program gpt --layers 1 --hidden 64 --batch 8 --seq 16 -n 2
search --program tutorial -n 8 --pareto
run --world lockstep -n 2 --only matmul --shape 4,4,4
train --world lockstep -n 2 --steps 1 --batch 8
""".strip().splitlines()


def words_outside_frame(image: str) -> list[str]:
    """Return the words of a picture that are not inside its frame."""
    root = ET.fromstring(image)
    assert f"font:{FONT}px" in image
    width, height = map(float, root.get("viewBox", "").split()[2:])
    boxes = list(words_of(root))
    assert boxes
    return [
        word
        for word, left, right, top, low in boxes
        if min(left, top) < -1 or right > width + 1 or low > height + 1
    ]


def has_description(image: str) -> bool:
    """Return True if a picture has a title and a description."""

    root = ET.fromstring(image)
    title, description = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
    return bool(
        title is not None and title.text and description is not None and (description.text or "").strip()
    )


@pytest.mark.parametrize("name", VALUES)
def test_pictures_of_values_keep_to_their_frames_and_have_descriptions(name: str) -> None:
    drawn = figure(pictured(name))
    image, page = drawn.svg, drawn.html
    assert has_description(image) and not words_outside_frame(image)
    for drawing in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        assert not words_outside_frame(drawing)


@pytest.mark.parametrize("line", LINES)
def test_pictures_of_commands_keep_to_their_frames_and_have_descriptions(
    line: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    picture, page = tmp_path / "x.svg", tmp_path / "x.html"
    assert main([*line.split(), "--svg", str(picture), "--html", str(page)]) == 0, capfd.readouterr()
    image = picture.read_text()
    assert has_description(image) and not words_outside_frame(image)
    for text in (image, page.read_text()):
        assert not re.search(
            r"<script|<link|<iframe|src=|href=|@import|url\(|https?://(?!www\.w3\.org/2000/svg)", text
        )
