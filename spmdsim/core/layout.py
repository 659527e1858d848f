"""The layout: where a tensor lives.

Per tensor dim, the mesh axes that split it, major to minor (MindSpore's and JAX's order); plus the axes along which
values are still partial. Everything else is derived from these two facts: bounds here; shard numbers, replicas, and how
other systems say it, placements and tensor maps, in :mod:`spmdsim.notation.layout_facts`.

Sizes that do not divide are split in balanced blocks, axis by axis, major first ("nested"): the first
``n % p`` of ``p`` parts get one element more (OneFlow's BalancedSplitter). Empty shards are legal.

Next: :mod:`spmdsim.core.rule`, what operators mean for layouts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from spmdsim.core.mesh import Mesh
from spmdsim.immutable import Immutable
from spmdsim.notation.arguments import PartialLike, axes_of_dim, check_axes, partial_axes_of
from spmdsim.notation.layout_facts import LayoutFacts

Bounds = tuple[tuple[int, int], ...]


def split_block(start: Any, size: Any, parts: int, index: Any) -> tuple[Any, Any]:
    """Start and size of a block of ``[start, start+size)`` in balanced ``parts``: numbers, or arrays that broadcast.

    >>> [split_block(0, 7, 3, i) for i in range(3)]
    [(0, 3), (3, 2), (5, 2)]
    """
    base, extra = size // parts, size % parts
    longer = index < extra
    return start + index * base + extra + (index - extra) * longer, base + longer


class Layout(Immutable, LayoutFacts):
    """Where a tensor lives on a mesh. Immutable and hashable; LayoutError for unknown or repeated axes, mixed reductions.

    Args:
        mesh: the mesh.
        dims: per tensor dim an axis name, a sequence of names (major first), or None.
        partial: axes with pending results and their reduction, ``{"tp": "sum"}``; a name or a sequence of
            names means ``sum``.

    >>> mesh = Mesh((2, 2, 2), ("dp", "sp", "mp"))
    >>> x = mesh("mp", ("sp", "dp"))
    >>> x.bounds((32, 784), rank=2)
    ((0, 16), (392, 588))
    """

    __slots__ = ("dims", "mesh", "partial")

    mesh: Mesh
    dims: tuple[tuple[str, ...], ...]
    partial: tuple[tuple[str, str], ...]

    def __init__(
        self, mesh: Mesh, dims: Sequence[str | Sequence[str] | None], partial: PartialLike = ()
    ) -> None:
        entries, waiting = tuple(map(axes_of_dim, dims)), partial_axes_of(mesh, partial)
        check_axes(mesh, entries, waiting)
        self._settle(("mesh", "dims", "partial"), mesh, entries, waiting)

    @cached_property
    def partial_axes(self) -> tuple[str, ...]:
        """The axes with pending results, in mesh order."""
        return tuple(axis for axis, _ in self.partial)

    @cached_property
    def replicated_axes(self) -> tuple[str, ...]:
        """The axes along which all ranks hold equal values, in mesh order."""
        used = {axis for entry in self.dims for axis in entry} | {*self.partial_axes}
        return tuple(axis for axis in self.mesh.axes if axis not in used)

    @property
    def reduce_op(self) -> str | None:
        """The reduction all partial axes wait for, or None."""
        return self.partial[0][1] if self.partial else None

    def bounds(self, shape: Sequence[int], rank: int) -> Bounds:
        """``(start, stop)`` per dim of the piece of a tensor of this ``shape`` that ``rank`` holds; outside the mesh empty."""
        if len(shape) != len(self.dims):
            self.check_shape(shape)
        if rank not in self.mesh:
            return ((0, 0),) * len(shape)
        coords = dict(zip(self.mesh.axes, self.mesh.coords(rank)))
        bounds = []
        for size, entry in zip(shape, self.dims):
            start = 0
            for axis in entry:
                start, size = split_block(start, size, self.mesh.size_of[axis], coords[axis])
            bounds.append((start, start + size))
        return tuple(bounds)

    def slices(self, shape: Sequence[int], rank: int) -> tuple[slice, ...]:
        """The bounds as slices, to index a global array with."""
        return tuple(slice(start, stop) for start, stop in self.bounds(shape, rank))

    def local_shape(self, shape: Sequence[int], rank: int) -> tuple[int, ...]:
        """Shape of the piece that ``rank`` holds; all zero for a rank outside the mesh."""
        return tuple(stop - start for start, stop in self.bounds(shape, rank))

    @cached_property
    def reduced(self) -> Layout:
        """The same splits with nothing pending."""
        return Layout(self.mesh, self.dims) if self.partial else self

    def dual(self) -> Layout:
        """The layout of the gradient: S stays S, R stays R, P becomes R (JAX's cotangent spec)."""
        return self.reduced

    @cached_property
    def canonical(self) -> Layout:
        """The same distribution without axes of size 1 in dims and partial."""
        size = self.mesh.size_of
        dims = tuple(tuple(a for a in entry if size[a] > 1) for entry in self.dims)
        partial = tuple((a, op) for a, op in self.partial if size[a] > 1)
        return self if (dims, partial) == (self.dims, self.partial) else Layout(self.mesh, dims, partial)
