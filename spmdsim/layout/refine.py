"""Two device matrices, one common mesh.

Two meshes over the same ranks in the same order cut the row-major positions at their prefix products: ``(8,)``
at 8, ``(2, 4)`` at 2 and 8. Where each product divides the next, the merged products are the axes of a mesh that
both meshes are merges of, and a layout on either can be written on it (MindSpore's unified device arrangement).
``(2, 3)`` and ``(3, 2)`` have no such mesh: 2 does not divide 3.

An axis cut in two makes a nested split out of a flat one, which is the same split only where the balanced cuts
coincide for the given size, so :func:`refine` looks at the shape too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from operator import mul

from spmdsim.core.layout import Layout
from spmdsim.core.mesh import Mesh
from spmdsim.layout.blocks import nested_blocks

#: Per axis of a mesh the axes of the common mesh it is the merge of, major first.
Factors = dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class CommonMesh:
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
    cuts = sorted({1, *_ends(a), *_ends(b)})
    if any(high % low for low, high in pairwise(cuts)):
        return None
    names: dict[int, str] = {}
    taken: set[str] = set()
    for mesh in (a, b):
        for axis, (low, high) in _intervals(mesh).items():
            at = cuts.index(low)
            if cuts[at + 1 : at + 2] == [high] and at not in names and axis not in taken:
                names[at] = axis
                taken.add(axis)
    inside = {at: axis for axis, (low, high) in _intervals(a).items() for at in _range(cuts, low, high)}
    for at in range(len(cuts) - 1):
        if at not in names:
            first = inside[at]
            names[at] = _fresh(f"{first}.{sum(inside[k] == first for k in range(at))}", taken)
            taken.add(names[at])
    sizes = [high // low for low, high in pairwise(cuts)]
    mesh = Mesh(sizes, [names[at] for at in range(len(sizes))], a.ranks)
    return CommonMesh(mesh, _factors(a, cuts, names), _factors(b, cuts, names))


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
    if not all(
        _same_cuts(layout, factors, both.mesh, shape)
        for layout, factors in ((a, both.first), (b, both.second))
    ):
        return None
    return rewrite(a, both.mesh, both.first), rewrite(b, both.mesh, both.second)


def rewrite(layout: Layout, mesh: Mesh, factors: Factors) -> Layout:
    """The layout with every axis replaced by the axes of ``mesh`` it is the merge of."""
    dims = [[part for axis in entry for part in factors[axis]] for entry in layout.dims]
    return Layout(mesh, dims, [(part, op) for axis, op in layout.partial for part in factors[axis]])


def _same_cuts(layout: Layout, factors: Factors, mesh: Mesh, shape: Sequence[int]) -> bool:
    """Whether nested balanced splits over the factors cut this shape where the layout does."""
    for size, entry in zip(shape, layout.dims):
        parts = [layout.mesh.axis_size(axis) for axis in entry]
        finer = [mesh.axis_size(part) for axis in entry for part in factors[axis]]
        if not same_cuts(size, tuple(parts), tuple(finer)):
            return False
    return True


@lru_cache(maxsize=4096)
def same_cuts(size: int, parts: tuple[int, ...], finer: tuple[int, ...]) -> bool:
    """Whether two nested splits of a dim cut it in the same blocks.

    >>> same_cuts(7, (4,), (2, 2)), same_cuts(6, (4,), (2, 2))
    (True, False)
    """
    return size % math.prod(finer) == 0 or nested_blocks(size, parts) == nested_blocks(size, finer)


def _ends(mesh: Mesh) -> list[int]:
    return list(accumulate(mesh.shape, mul))


def _intervals(mesh: Mesh) -> dict[str, tuple[int, int]]:
    """Per axis longer than 1, the prefix products before and after it."""
    ends = _ends(mesh)
    pairs = zip(mesh.axes, zip([1, *ends], ends))
    return {axis: (low, high) for axis, (low, high) in pairs if low != high}


def _range(cuts: list[int], low: int, high: int) -> range:
    return range(cuts.index(low), cuts.index(high))


def _factors(mesh: Mesh, cuts: list[int], names: dict[int, str]) -> Factors:
    intervals = _intervals(mesh)
    return {
        axis: tuple(names[at] for at in _range(cuts, *intervals[axis])) if axis in intervals else ()
        for axis in mesh.axes
    }


def _fresh(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "'"
    return name
