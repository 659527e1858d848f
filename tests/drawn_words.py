"""Helpers read pictures from their SVG: boxes of words, titles of shapes, contrasts of colours."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from functools import cache

import numpy as np

from spmdsim import Mesh
from spmdsim.figures import figure

SVG = "{http://www.w3.org/2000/svg}"
#: Size of the letters of all words but titles, and width of a letter of a monospaced font, in pixels.
FONT, LETTER = 12, 7.25


def words_of(
    node: ET.Element, x: float = 0, y: float = 0
) -> Iterator[tuple[str, float, float, float, float]]:
    """Yield each text below ``node`` and the box around it: left, right, top, bottom, in pixels.

    ``x`` and ``y`` are the position of the node's parent.
    """
    moved = node.get("transform", "")
    if moved:
        shift = re.match(r"translate\(([-\d.]+) ([-\d.]+)\)", moved)
        assert shift is not None, moved
        x, y = x + float(shift[1]), y + float(shift[2])
    if node.tag == f"{SVG}text":
        words = "".join([node.text or "", *(inner.tail or "" for inner in node)])
        size = 14 if node.get("class") == "title" else FONT
        wide = len(words) * LETTER * size / FONT
        before = {"start": 0.0, "middle": wide / 2, "end": wide}[node.get("text-anchor", "start")]
        x, y = x + float(node.get("x", 0)), y + float(node.get("y", 0))
        if "rotate(-90)" in moved:
            yield words, x - 0.8 * size, x + 4, y - before, y - before + wide
        else:
            yield words, x - before, x - before + wide, y - 0.8 * size, y + 4
    for inner in node:
        yield from words_of(inner, x, y)


def titles(image: str) -> list[str]:
    return [one.text or "" for one in ET.fromstring(image).iter("{http://www.w3.org/2000/svg}title")]


@cache
def fills() -> list[tuple[str, str]]:
    """Return the 8 fills of shards, each with the colour of letters on it."""
    image = figure(Mesh((4, 8), ("a", "b"))("a", "b"), shape=(4, 8)).svg
    cells = re.findall(r"<title>rank \d+ at.*?</g>", image)
    assert len(cells) == 32
    pairs = [re.search(r' fill="(#\w+)".*style="fill:(#\w+)"', cell).groups() for cell in cells]
    assert pairs == pairs[:8] * 4
    return pairs[:8]


def linear(colour: str) -> np.ndarray:
    """Return red, green and blue of an sRGB colour (``#rgb`` or ``#rrggbb``) as linear light from 0 to 1."""
    digits = colour[1:] if len(colour) == 7 else "".join(c * 2 for c in colour[1:])
    encoded = np.array([int(digits[i : i + 2], 16) for i in (0, 2, 4)]) / 255
    return np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours as WCAG 2 defines it."""
    light = sorted(float(linear(c) @ (0.2126, 0.7152, 0.0722)) + 0.05 for c in (one, other))
    return light[1] / light[0]
