"""Find a mesh on which layouts of two meshes can both be written.

Two meshes over the same ranks in the same order cut the row-major positions at their prefix products: ``(8,)``
at 8, ``(2, 4)`` at 2 and 8. If each product divides the next, the merged products are the axes of a common mesh: each
axis of either mesh is the product of some of its axes. A layout on either mesh can be written on it (MindSpore's
unified device arrangement). ``(2, 3)`` and ``(3, 2)`` have no common mesh.

If an axis is cut in two, a flat split becomes a nested one. Both have the same blocks only for some sizes of the
dimension, so :func:`refine` checks the shape too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from operator import mul
from typing import NamedTuple

from spmdsim.core.layout import Layout, Mesh, nested_blocks

#: Maps each axis of a mesh to the axes of the common mesh whose product it is, major first.
Factors = dict[str, tuple[str, ...]]


class CommonMesh(NamedTuple):
    """A common mesh of two meshes, and the factors of the axes of each."""

    mesh: Mesh
    first: Factors
    second: Factors


@lru_cache(maxsize=1024)
def common_mesh(a: Mesh, b: Mesh) -> CommonMesh | None:
    """Return the coarsest mesh on which layouts of both meshes can be written, or None.

    The cuts of a mesh are the products of its first 1, 2, ... sizes: 2, 8 for sizes (2, 4). The common mesh has the cuts
    of both meshes, so each axis of ``a`` or ``b`` is the product of some of its axes. Axes of size 1 are dropped.

    The result is None in these cases:

    - The meshes have different ranks, or another order of ranks.
    - A cut does not divide the next larger cut of either mesh, such as 2 and 3.

    Names of its axes: an axis that is not divided keeps its name; if both meshes have the axis, the name of ``a`` is
    used. Other axes are named after an axis ``x`` of ``a``: ``x.0``, ``x.1``; an apostrophe is added if the name is taken.

    Results are cached.

    Returns:
        The common mesh (``mesh``), and for each axis of ``a`` (``first``) and of ``b`` (``second``) the axes whose product
        it is, major first; () for an axis of size 1.

    >>> both = common_mesh(Mesh((8,), ("x",)), Mesh((2, 4), ("a", "b")))
    >>> print(both.mesh, both.first, both.second)
    a=2 b=4 {'x': ('a', 'b')} {'a': ('a',), 'b': ('b',)}
    >>> common_mesh(Mesh((2, 3), ("a", "b")), Mesh((3, 2), ("c", "d"))) is None
    True
    """
    if a.size != b.size or a.ranks != b.ranks:
        return None
    cuts = sorted({1, *accumulate(a.shape, mul), *accumulate(b.shape, mul)})
    if any(high % low for low, high in pairwise(cuts)):
        return None
    factor_tables = [_map_axes_to_factors(mesh, cuts) for mesh in (a, b)]
    names: dict[int, str] = {}
    for table in factor_tables:
        for axis, factors in table.items():
            if len(factors) == 1 and factors[0] not in names and axis not in names.values():
                names[factors[0]] = axis
    for axis, factors in factor_tables[0].items():
        for i, factor in enumerate(factors):
            if factor not in names:
                name = f"{axis}.{i}"
                while name in names.values():
                    name += "'"
                names[factor] = name
    sizes = [high // low for low, high in pairwise(cuts)]
    mesh = Mesh(sizes, [names[factor] for factor in range(len(sizes))], a.ranks)
    first, second = (
        {axis: tuple(names[k] for k in factors) for axis, factors in table.items()} for table in factor_tables
    )
    return CommonMesh(mesh, first, second)


@lru_cache(maxsize=1024)
def mesh_of_nodes(mesh: Mesh, nodes: tuple[int, ...]) -> Mesh | None:
    """Return a mesh of two axes, ``inside`` nodes and ``across`` them, of the same ranks in order.

    The axes of ``mesh`` do not matter. The result is None for one node, for one rank per node, and for all placements but
    these two:

    - Ranks of a node follow one another, equally many on each node: the axis ``inside`` is the last one.
    - Ranks are dealt to the nodes in turn: ``inside`` is the first axis.

    Args:
        mesh: a mesh.
        nodes: the number of the node of each rank, in the order of the mesh.

    >>> print(mesh_of_nodes(Mesh((4,), ("x",)), (0, 0, 1, 1)), mesh_of_nodes(Mesh((4,), ("x",)), (0, 1, 0, 1)), sep="; ")
    across=2 inside=2; inside=2 across=2
    >>> mesh_of_nodes(Mesh((4,), ("x",)), (0, 0, 0, 1)) is None
    True
    """
    count = len({*nodes})
    per_node, remainder = divmod(mesh.size, count)
    if remainder or per_node == 1 or count == 1:
        return None
    first_rank_of_each, first_ranks = nodes[::per_node], nodes[:count]
    if nodes == tuple([node for node in first_rank_of_each for _ in range(per_node)]):
        return Mesh((count, per_node), ("across", "inside"), mesh.ranks)
    if nodes == first_ranks * per_node and len({*first_ranks}) == count:
        return Mesh((per_node, count), ("inside", "across"), mesh.ranks)
    return None


def _map_axes_to_factors(mesh: Mesh, cuts: list[int]) -> dict[str, range]:
    """Return the numbers of each axis' factors; factor ``k`` is ``cuts[k + 1] / cuts[k]``."""
    ends = pairwise([1, *accumulate(mesh.shape, mul)])
    return {axis: range(cuts.index(low), cuts.index(high)) for axis, (low, high) in zip(mesh.axes, ends)}


def refine(a: Layout, b: Layout, shape: Sequence[int]) -> tuple[Layout, Layout] | None:
    """Return two layouts of a tensor of this shape, written on their common mesh.

    Both results are on one mesh, so plain redistribution on a mesh can go from one to the other. Each result gives
    every rank the block that the argument gives it.

    The result is None if the meshes have no common mesh (see :func:`common_mesh`), or a block would have other bounds
    there. Pending reductions go to the factors of their axes.

    Args:
        a: a layout.
        b: a layout, on any mesh.
        shape: the shape of the tensor.

    Returns:
        ``(a on the common mesh, b on the common mesh)``, or None.

    >>> x = Mesh((8,), ("x",))("x")
    >>> y = Mesh((2, 4), ("a", "b"))("b")
    >>> [str(layout) for layout in refine(x, y, (16,))]
    ['[(a,b)] over a=2 b=4', '[b] over a=2 b=4']
    >>> refine(x, y, (10,)) is None  # 8 blocks of 10 have other bounds than 2 times 4 blocks
    True
    """
    both = common_mesh(a.mesh, b.mesh)
    if both is None:
        return None
    refined_a = _replace_axes(a, both.mesh, both.first)
    refined_b = _replace_axes(b, both.mesh, both.second)
    for layout, refined in ((a, refined_a), (b, refined_b)):
        if not all(same_cuts(*dim) for dim in zip(shape, split_sizes(layout), split_sizes(refined))):
            return None
    return refined_a, refined_b


def _replace_axes(layout: Layout, mesh: Mesh, factors: Factors) -> Layout:
    """Return the layout on ``mesh``, with each axis replaced by its factors."""
    dims = [[factor for axis in entry for factor in factors[axis]] for entry in layout.dims]
    return Layout(mesh, dims, [(factor, op) for axis, op in layout.partial for factor in factors[axis]])


def split_sizes(layout: Layout) -> list[tuple[int, ...]]:
    """Return, for each dimension, the sizes of the axes that split it."""
    size_of = layout.mesh.size_of
    return [tuple([size_of[axis] for axis in entry]) for entry in layout.dims]


@lru_cache(maxsize=4096)
def same_cuts(size: int, parts: tuple[int, ...], finer: tuple[int, ...]) -> bool:
    """Return True if two nested splits of a dimension have the same blocks.

    Args:
        size: number of elements.
        parts: block counts of the first split, major first.
        finer: block counts of the second split, whose product is a multiple of the first product.

    >>> same_cuts(7, (4,), (2, 2)), same_cuts(6, (4,), (2, 2))
    (True, False)
    """
    return size % math.prod(finer) == 0 or nested_blocks(size, parts) == nested_blocks(size, finer)
