"""Reductions that go together: which may share one message, and the one collective that they become.

Gradients of parameters wait for the same few reductions. Those that are reduced along the same mesh axes, or
scattered along them over the same dim, are laid end to end and sent in one call per bucket: the bytes stay, the
latency is paid once. Training does so, and the strategy search prices it, by what is written here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from spmdsim.layout import Layout, Mesh
from spmdsim.redistribution.step import Step

#: What one rank holds of the tensors of one bucket, at most, unless a single tensor is larger.
BUCKET_BYTES = 25 * 1024 * 1024

Item = TypeVar("Item")


@dataclass(frozen=True)
class Merge:
    """What reductions have in common that may share a message.

    Attributes:
        collective: ``all_reduce`` or ``reduce_scatter``.
        mesh: the mesh.
        axes: the axes along which it reduces, the major one first.
        op: the reduction.
        dim: the dim that is scattered; None for an all_reduce.
    """

    collective: str
    mesh: Mesh
    axes: tuple[str, ...]
    op: str
    dim: int | None = None

    @property
    def ranks(self) -> int:
        """Ranks of a group."""
        return self.mesh.axis_size(*self.axes)

    def received(self, elements: float) -> float:
        """Elements that a rank receives when every rank holds so many."""
        share = (self.ranks - 1) / self.ranks * elements
        return 2 * share if self.collective == "all_reduce" else share

    def step(self, elements: int) -> Step:
        """The one collective, on a flat tensor of so many elements per rank."""
        flat = Layout(self.mesh, (None,), [(axis, self.op) for axis in self.axes])
        after = flat.reduced if self.dim is None else Layout(self.mesh, (self.axes,))
        return Step(self.collective, self.axes, flat, after, (elements,), self.op)


@lru_cache(maxsize=1 << 16)
def merge_of(src: Layout, dst: Layout, shape: tuple[int, ...]) -> Merge | None:
    """How a reduction may share a message; None if it is none, or its pieces are not all equal.

    >>> mesh = Mesh((2, 4), ("dp", "tp"))
    >>> merge_of(mesh(None, "tp", partial="dp"), mesh(None, "tp"), (8, 8)).collective
    'all_reduce'
    >>> merge_of(mesh(None, "tp", partial="dp"), mesh("dp", "tp"), (8, 8)).dim
    0
    """
    src, dst = src.canonical, dst.canonical
    ops = {op for _, op in src.partial}
    if len(ops) != 1 or dst.partial or src.mesh != dst.mesh or len(src.dims) != len(dst.dims):
        return None
    if not (src.reduced.is_even(shape) and dst.is_even(shape)):
        return None
    changed = [d for d, (before, after) in enumerate(zip(src.dims, dst.dims)) if before != after]
    if not changed:
        return Merge("all_reduce", src.mesh, src.partial_axes, ops.pop())
    before, after = src.dims[changed[0]], dst.dims[changed[0]]
    added = after[len(before) :]
    if len(changed) > 1 or after[: len(before)] != before or set(added) != set(src.partial_axes):
        return None
    return Merge("reduce_scatter", src.mesh, added, ops.pop(), changed[0])


def elements_held(src: Layout, shape: Sequence[int]) -> int:
    """Elements of a tensor that every rank holds, for a layout with equal pieces."""
    return math.prod(size // parts for size, parts in zip(shape, src.parts))


def buckets(items: Iterable[tuple[Item, int]], most: int = BUCKET_BYTES) -> list[list[Item]]:
    """Items with their bytes, in order, as lists of at most ``most`` bytes each.

    >>> buckets([("a", 10), ("b", 10), ("c", 15), ("d", 40)], most=20)
    [['a', 'b'], ['c'], ['d']]
    """
    found: list[list[Item]] = []
    size = 0
    for item, nbytes in items:
        if not found or size + nbytes > most:
            found.append([])
            size = 0
        found[-1].append(item)
        size += nbytes
    return found
