"""Published cases about layouts, by kind, and a slow reference for the indices that a rank owns."""

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
    """Return the pytest parameters of all cases of the given kinds in ``vectors/NAME.json``."""
    vectors = [case for case in _load(name) if case["kind"] in kinds]
    assert vectors, f"no case of kind {kinds} in {name}"
    return [pytest.param(case, id=case.get("id", f"{case['kind']}-{i}")) for i, case in enumerate(vectors)]


def tuples(value):
    """Return nested lists as nested tuples."""
    return tuple(tuples(v) for v in value) if isinstance(value, list) else value


def blocks(items, count):
    """Return ``count`` balanced blocks of a list of ``items``. Counts elements and uses no formula."""
    sizes = [0] * count
    for i in range(len(items)):
        sizes[i % count] += 1
    at = itertools.accumulate(sizes, initial=0)
    return [items[start : start + size] for start, size in zip(at, sizes)]


def list_owned_indices(size, entry, mesh_axes, mesh_shape, coords):
    """Return the indices of one dim that the rank at ``coords`` owns, by cutting lists axis by axis.

    Args:
        size: the size of the dim.
        entry: the mesh axes that split the dim, the major one first.
        mesh_axes: the names of all axes of the mesh.
        mesh_shape: their sizes.
        coords: the coordinates of the rank in the mesh.
    """
    items = list(range(size))
    for axis in entry:
        i = mesh_axes.index(axis)
        items = blocks(items, mesh_shape[i])[coords[i]]
    return items
