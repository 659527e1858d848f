"""Exhaustive checks take all meshes of a number of ranks, and all layouts of a mesh."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, combinations_with_replacement, permutations
from random import Random

from spmdsim.core import Layout, Mesh


def every_mesh(size: int) -> list[Mesh]:
    """Return all meshes of ``size`` ranks without axes of size 1, with the axis sizes in each order.

    >>> [mesh.shape for mesh in every_mesh(8)]
    [(8,), (2, 4), (2, 2, 2), (4, 2)]
    """
    return [Mesh(shape, tuple(f"{'abcdefgh'[k]}" for k in range(len(shape)))) for shape in _products(size)]


def some_layouts(mesh: Mesh, ndims: list[int], count: int, seed: str) -> list[tuple[Layout, ...]]:
    """Return ``count`` random tuples, one layout per entry of ``ndims``. Equal seeds give equal tuples."""
    draw, every = Random(seed), [every_layout(mesh, ndim) for ndim in ndims]
    return [tuple(draw.choice(layouts) for layouts in every) for _ in range(count)]


def every_layout(mesh: Mesh, ndim: int, partial: bool = False, op: str = "sum") -> list[Layout]:
    """Return all layouts of tensors of ``ndim`` dims on a mesh, with the axes of each dim in each order.

    Args:
        mesh: the mesh.
        ndim: number of dims.
        partial: if True, include layouts that are partial along any of the axes without a dim.
        op: the reduction of the partial axes.

    >>> mesh = Mesh((2, 2), ("a", "b"))
    >>> len(every_layout(mesh, 2)), len(every_layout(mesh, 2, partial=True))
    (11, 18)
    """
    layouts: list[Layout] = []
    for count in range(len(mesh.axes) + 1) if ndim else [0]:
        for order in permutations(mesh.axes, count):
            for cuts in combinations_with_replacement(range(count + 1), max(ndim - 1, 0)):
                ends = [0, *cuts, count] if ndim else [0]
                dims = [order[ends[d] : ends[d + 1]] for d in range(ndim)]
                layouts += _pending(mesh, dims, order, partial, op)
    return list(dict.fromkeys(layouts))


def _pending(
    mesh: Mesh, dims: list[tuple[str, ...]], used: tuple[str, ...], partial: bool, op: str
) -> Iterator[Layout]:
    free = [axis for axis in mesh.axes if axis not in used]
    for count in range(len(free) + 1 if partial else 1):
        for axes in combinations(free, count):
            yield Layout(mesh, dims, dict.fromkeys(axes, op))


def _products(size: int) -> Iterator[tuple[int, ...]]:
    yield (size,)
    for first in range(2, size):
        if size % first == 0:
            for following in _products(size // first):
                yield (first, *following)
