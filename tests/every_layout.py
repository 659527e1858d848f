"""Every mesh of some ranks and every layout of a mesh, for exhaustive checks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, combinations_with_replacement, permutations
from random import Random

from spmdsim.core import Layout, Mesh


def every_mesh(size: int) -> list[Mesh]:
    """All meshes of ``size`` ranks whose axes are longer than 1, in every order of their sizes.

    >>> [mesh.shape for mesh in every_mesh(8)]
    [(8,), (2, 4), (2, 2, 2), (4, 2)]
    """
    return [Mesh(shape, tuple(f"{'abcdefgh'[k]}" for k in range(len(shape)))) for shape in _products(size)]


def some_layouts(mesh: Mesh, ndims: list[int], count: int, seed: str) -> list[tuple[Layout, ...]]:
    """So many random layouts of tensors of these numbers of dims, the same ones for a seed."""
    draw, every = Random(seed), [every_layout(mesh, ndim) for ndim in ndims]
    return [tuple(draw.choice(layouts) for layouts in every) for _ in range(count)]


def every_layout(mesh: Mesh, ndim: int, partial: bool = False, op: str = "sum") -> list[Layout]:
    """All layouts of tensors of ``ndim`` dims on a mesh, axes of a tuple in every order.

    Args:
        mesh: the mesh.
        ndim: number of dims.
        partial: also those with values pending along any of the axes that split nothing.
        op: the pending reduction.

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
            for rest in _products(size // first):
                yield (first, *rest)
