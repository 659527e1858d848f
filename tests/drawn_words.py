"""Words and colours of pictures, read from their SVG: where words lie, what shapes say, how colours differ."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator

import numpy as np

from spmdsim.figures.canvas import FONT, LETTER

SVG = "{http://www.w3.org/2000/svg}"


def words_of(
    node: ET.Element, x: float = 0, y: float = 0
) -> Iterator[tuple[str, float, float, float, float]]:
    """Every text of a picture, and the box that it takes: left, right, top, bottom."""
    moved = node.get("transform", "")
    if moved:
        place = re.match(r"translate\(([-\d.]+) ([-\d.]+)\)", moved)
        assert place is not None, moved
        x, y = x + float(place[1]), y + float(place[2])
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


def linear(colour: str) -> np.ndarray:
    """Red, green and blue as light."""
    short = colour[1:] if len(colour) == 7 else "".join(c * 2 for c in colour[1:])
    part = np.array([int(short[i : i + 2], 16) for i in (0, 2, 4)]) / 255
    return np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours as WCAG 2 defines it."""
    light = sorted(float(linear(c) @ (0.2126, 0.7152, 0.0722)) + 0.05 for c in (one, other))
    return light[1] / light[0]
