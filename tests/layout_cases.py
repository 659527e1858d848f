"""Published cases about layouts, by kind, and a slow reference for what a rank holds."""

from __future__ import annotations

import itertools
import json
from functools import cache
from pathlib import Path

import pytest


@cache
def _load(name):
    return json.loads((Path(__file__).parent / "vectors" / f"{name}.json").read_text(encoding="utf-8"))


def cases(name, *kinds):
    """Parameters of all cases of the given kinds."""
    vectors = [case for case in _load(name) if case["kind"] in kinds]
    assert vectors, f"no case of kind {kinds} in {name}"
    return [pytest.param(case, id=case.get("id", f"{case['kind']}-{i}")) for i, case in enumerate(vectors)]


def tuples(value):
    """Nested lists as nested tuples."""
    return tuple(tuples(v) for v in value) if isinstance(value, list) else value


def blocks(items, parts):
    """Cut a list into balanced blocks by dealing out the extra elements: no formula, just counting."""
    sizes = [0] * parts
    for i in range(len(items)):
        sizes[i % parts] += 1
    at = itertools.accumulate(sizes, initial=0)
    return [items[start : start + size] for start, size in zip(at, sizes)]


def held(size, entry, mesh_axes, mesh_shape, coords):
    """The indices of one dim that the rank at ``coords`` holds, found by cutting lists axis by axis."""
    items = list(range(size))
    for axis in entry:
        i = mesh_axes.index(axis)
        items = blocks(items, mesh_shape[i])[coords[i]]
    return items
