"""One step of a redistribution: a collective that takes a tensor from one layout to another, as a value.

Who sends which box to whom follows from its two layouts: a rank receives, from each member of its group, the overlap
of the member's source box with its own target box. Placing the boxes gives all_gather, all_to_all and slice; reducing
them gives all_reduce and reduce_scatter.

Next: :mod:`spmdsim.core.route`, which strings steps together.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from spmdsim.core.layout import Bounds, Layout, split_block
from spmdsim.pictured import ShortRepr

Index = tuple[slice, ...]

#: The steps in which nothing is sent, and those that connect the ranks of both meshes, not groups of one.
LOCAL_STEPS = ("slice", "fill", "reshape", "window")
EXCHANGES = ("exchange", "reduce_exchange")
#: Elements that a rank receives in the collectives that core does not run, by their name: :mod:`spmdsim.redistribution`.
RECEIVED_ELSEWHERE: dict[str, Callable[[Step, int], int]] = {}


def overlap(a: Bounds, b: Bounds) -> Bounds | None:
    """The common box of two boxes, or None if they share no element.

    >>> overlap(((0, 4), (0, 4)), ((2, 6), (1, 3)))
    ((2, 4), (1, 3))
    """
    box = tuple([(p if p > r else r, q if q < s else s) for (p, q), (r, s) in zip(a, b)])
    return None if [start for start, stop in box if start >= stop] else box


def within(box: Bounds, outer: Bounds) -> Index:
    """The box as slices relative to the start of ``outer``."""
    return tuple(slice(start - base, stop - base) for (start, stop), (base, _) in zip(box, outer))


def volume(box: Bounds) -> int:
    """Number of elements of a box."""
    return math.prod(stop - start for start, stop in box)


def reduction_elements(collective: str, members: int, held: Any, place: Any = 0) -> Any:
    """Elements that a rank receives in a reduction of so many members, as the bandwidth-optimal algorithm moves blocks.

    After it the rank, number ``place`` of its group, has ``held`` elements (a number, or an array); the first is the busiest.

    >>> reduction_elements("reduce_scatter", 4, 10), reduction_elements("all_reduce", 4, 10)
    (30, 16)
    """
    if collective == "reduce_scatter":
        return (members - 1) * held
    block = split_block(0, held, members, place)[1]
    return (members - 1) * block + held - block


@dataclass(frozen=True, repr=False)
class Step(ShortRepr):
    """A collective between two layouts of a tensor of some global shape.

    Args:
        collective: ``slice``, which is local, ``all_gather``, ``all_to_all``, ``all_reduce`` or ``reduce_scatter``; worlds outside
            of core run more (:data:`spmdsim.worlds.programs.STEP_COLLECTIVES`).
        axes: the mesh axes along which the groups communicate; empty for exchanges and local steps.
        src: the layout before.
        dst: the layout after.
        shape: of the tensor.
        op: the reduction, for steps that reduce; the pending one, for fill.
        to_shape: the global shape after, where the step changes it (no step of core does).
    """

    collective: str
    axes: tuple[str, ...]
    src: Layout
    dst: Layout
    shape: tuple[int, ...]
    op: str | None = None
    to_shape: tuple[int, ...] | None = None

    @cached_property
    def number(self) -> int:
        """Its hash, derived once: caches look steps up by it, and compare."""
        return hash(self)

    @property
    def shape_after(self) -> tuple[int, ...]:
        """Global shape after the step."""
        return self.shape if self.to_shape is None else self.to_shape

    def group(self, rank: int) -> tuple[int, ...]:
        """The ranks that take part together with ``rank``, major axis first, itself included."""
        return self.src.mesh.group(rank, *self.axes)

    def place(self, rank: int) -> int:
        """The number of ``rank`` among the ranks of its group in ascending order: that of its block in an all_reduce."""
        mesh = self.src.mesh
        if mesh.ranks is not None:
            return sorted(self.group(rank)).index(rank)
        coords, place = mesh.coords(rank), 0  # without listing the group's members: they may be a million
        for axis in sorted(self.axes, key=mesh.axis_index):
            place = place * mesh.axis_size(axis) + coords[mesh.axis_index(axis)]
        return place

    def nbytes(self, rank: int, itemsize: int) -> int:
        """Bytes ``rank`` receives from others; in reductions as :func:`reduction_elements` says."""
        if self.collective in RECEIVED_ELSEWHERE:
            return itemsize * RECEIVED_ELSEWHERE[self.collective](self, rank)
        if self.collective in LOCAL_STEPS or rank not in self.dst.mesh:
            return 0
        target = self.dst.bounds(self.shape, rank)
        if self.collective in ("all_reduce", "reduce_scatter"):
            size = self.src.mesh.axis_size(*self.axes)
            return itemsize * int(reduction_elements(self.collective, size, volume(target), self.place(rank)))
        own = overlap(self.src.bounds(self.shape, rank), target)
        return itemsize * (volume(target) - (0 if own is None else volume(own)))

    def __str__(self) -> str:
        over = f" over {','.join(self.axes)}" if self.axes else ""
        return f"{self.collective}{over}: {self.src.short()} -> {self.dst.short()}"
