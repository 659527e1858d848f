"""Where a tensor lives, for the page: per layout its derivation, and per shape every rank's box."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spmdsim.core import Layout, Mesh
from spmdsim.explore.offer import Shape, layouts_of
from spmdsim.layout.explain import Derivation


def layout_key(layout: Layout) -> str:
    """How page and tests name a layout: axes per dim, joined by ``;``, then the pending ones behind ``+``.

    >>> layout_key(Mesh((2, 2, 2), ("a", "b", "c"))(("b", "a"), None, partial="c"))
    'b,a;+c'
    """
    dims = ";".join(",".join(entry) for entry in layout.dims)
    return f"{dims}+{','.join(axis for axis, _ in layout.partial)}" if layout.partial else dims


def mesh_facts(mesh: Mesh) -> dict[str, Any]:
    """A mesh: its name, axes, and every rank's coordinate."""
    return {
        "name": str(mesh),
        "axes": list(mesh.axes),
        "sizes": list(mesh.shape),
        "ranks": list(mesh.rank_list),
        "coords": [mesh.coords(rank) for rank in mesh.rank_list],
    }


def derivations(mesh: Mesh, ndim: int, further: Sequence[Layout] = ()) -> dict[str, dict[str, Any]]:
    """The derivation of every layout on offer, and of further ones, by its key."""
    return {layout_key(layout): derivation_facts(layout) for layout in (*layouts_of(mesh, ndim), *further)}


def derivation_facts(layout: Layout) -> dict[str, Any]:
    """The three steps of a derivation as plain data, and what the layout is called elsewhere.

    >>> facts = derivation_facts(Mesh((2, 2), ("a", "b"))("b", "a"))
    >>> facts["shard"], facts["strides"], facts["short"]
    ([0, 2, 1, 3], [2, 1], 'S(1)S(0)')
    """
    derived = Derivation(layout)
    rows = derived.rows
    return {
        "short": layout.short(),
        "text": str(layout),
        "tensor_map": layout.to_dict()["tensor_map"],
        "adjusted": list(derived.adjusted_axes),
        "dropped": list(derived.dropped_axes),
        "moves": derived.needs_adjusting,
        "stride_texts": [str(stride) for stride in derived.strides],
        "strides": [stride.value for stride in derived.strides],
        "digits": [row.adjusted for row in rows],
        "terms": [row.terms for row in rows],
        "shard": [row.shard_number for row in rows],
        "shards": layout.shard_count,
        "replicas": [row.replicas for row in rows],
        "pending": list(layout.partial_axes),
    }


def boxes(layout: Layout, shape: Shape) -> list[list[tuple[int, int]]]:
    """``(start, stop)`` per dim of every rank, in mesh order."""
    return [list(layout.bounds(shape, rank)) for rank in layout.mesh.rank_list]
