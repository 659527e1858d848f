"""Two device matrices that cut alike, refined to one, and the layouts on them.

Two meshes over the same ranks in the same order cut the row-major positions at their prefix products: ``(8,)``
at 8, ``(2, 4)`` at 2 and 8. Where each product divides the next, the merged products are the axes of a mesh that
both meshes are merges of, and a layout on either can be written on it (MindSpore's unified device arrangement).
``(2, 3)`` and ``(3, 2)`` have no such mesh. An axis cut in two makes a nested split out of a flat one, which is the same
split only where the balanced cuts coincide for the given size, so :func:`refine` looks at the shape too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from operator import mul
from typing import NamedTuple

from spmdsim.core.layout import Layout, Mesh, nested_blocks

#: Per axis of a mesh the axes of the common mesh it is the merge of, major first.
Factors = dict[str, tuple[str, ...]]


class CommonMesh(NamedTuple):
    """A mesh that two meshes are merges of, and how."""

    mesh: Mesh
    first: Factors
    second: Factors


@lru_cache(maxsize=1024)
def common_mesh(a: Mesh, b: Mesh) -> CommonMesh | None:
    """The coarsest mesh that both meshes are merges of, or None. Axes of size 1 are dropped.

    An axis keeps its name where it is an axis of ``a`` or ``b``; the parts of an axis ``x`` are named ``x.0``, ``x.1``.

    >>> both = common_mesh(Mesh((8,), ("x",)), Mesh((2, 4), ("a", "b")))
    >>> print(both.mesh, both.first)
    a=2 b=4 {'x': ('a', 'b')}
    >>> common_mesh(Mesh((2, 3), ("a", "b")), Mesh((3, 2), ("c", "d"))) is None
    True
    """
    if a.size != b.size or a.ranks != b.ranks:
        return None
    cuts = sorted({1, *accumulate(a.shape, mul), *accumulate(b.shape, mul)})
    if any(high % low for low, high in pairwise(cuts)):
        return None
    sides = [_steps_of_axes(mesh, cuts) for mesh in (a, b)]
    names: dict[int, str] = {}
    for steps in sides:
        for axis, some in steps.items():
            if len(some) == 1 and some[0] not in names and axis not in names.values():
                names[some[0]] = axis
    for axis, some in sides[0].items():
        for part, step in enumerate(some):
            if step not in names:
                name = f"{axis}.{part}"
                while name in names.values():
                    name += "'"
                names[step] = name
    sizes = [high // low for low, high in pairwise(cuts)]
    mesh = Mesh(sizes, [names[step] for step in range(len(sizes))], a.ranks)
    first, second = ({axis: tuple(names[k] for k in some) for axis, some in one.items()} for one in sides)
    return CommonMesh(mesh, first, second)


def _steps_of_axes(mesh: Mesh, cuts: list[int]) -> dict[str, range]:
    """Per axis the steps, from cut to cut, that it is made of."""
    ends = pairwise([1, *accumulate(mesh.shape, mul)])
    return {axis: range(cuts.index(low), cuts.index(high)) for axis, (low, high) in zip(mesh.axes, ends)}


def refine(a: Layout, b: Layout, shape: Sequence[int]) -> tuple[Layout, Layout] | None:
    """Two layouts of a tensor of this shape, written on one mesh; None where that is not possible.

    >>> x = Mesh((8,), ("x",))("x")
    >>> y = Mesh((2, 4), ("a", "b"))("b")
    >>> [str(layout) for layout in refine(x, y, (16,))]
    ['[(a,b)] over a=2 b=4', '[b] over a=2 b=4']
    >>> refine(x, y, (10,)) is None  # 8 parts of 10 are cut elsewhere than 2 times 4 parts
    True
    """
    both = common_mesh(a.mesh, b.mesh)
    if both is None:
        return None
    pairs = [(a, _rewritten(a, both.mesh, both.first)), (b, _rewritten(b, both.mesh, both.second))]
    if not all(same_cuts(*cut) for one, finer in pairs for cut in zip(shape, sizes_of(one), sizes_of(finer))):
        return None
    return pairs[0][1], pairs[1][1]


def _rewritten(layout: Layout, mesh: Mesh, factors: Factors) -> Layout:
    """The layout with every axis replaced by the axes of ``mesh`` it is the merge of."""
    dims = [[part for axis in entry for part in factors[axis]] for entry in layout.dims]
    return Layout(mesh, dims, [(part, op) for axis, op in layout.partial for part in factors[axis]])


def sizes_of(layout: Layout) -> list[tuple[int, ...]]:
    """Per dim the sizes of the axes that split it."""
    size_of = layout.mesh.size_of
    return [tuple([size_of[axis] for axis in entry]) for entry in layout.dims]


@lru_cache(maxsize=4096)
def same_cuts(size: int, parts: tuple[int, ...], finer: tuple[int, ...]) -> bool:
    """Whether two nested splits of a dim cut it in the same blocks.

    >>> same_cuts(7, (4,), (2, 2)), same_cuts(6, (4,), (2, 2))
    (True, False)
    """
    return size % math.prod(finer) == 0 or nested_blocks(size, parts) == nested_blocks(size, finer)
