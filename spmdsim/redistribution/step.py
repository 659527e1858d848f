"""One step of a redistribution: a collective that takes a tensor from one layout to another.

A step is a value. Who sends which box to whom follows from its two layouts: a rank receives, from each
member of its group, the overlap of the member's source box with its own target box. Placing the boxes gives
all_gather, all_to_all, slice and exchange; reducing them gives all_reduce and reduce_scatter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from spmdsim.core import Bounds, Layout
from spmdsim.core.blocks import split_block
from spmdsim.cost.closed_forms import reduction_elements

#: The collectives a step may be. ``slice``, ``fill`` and ``reshape`` are local; ``exchange`` is the direct
#: redistribution in which every rank sends exactly the overlapping boxes, ``reduce_exchange`` its counterpart for what
#: is pending: one rank adds an element up, and sends it on (:mod:`~spmdsim.redistribution.exchange.direct_reduction`).
STEP_COLLECTIVES = (
    "slice",
    "fill",
    "reshape",
    "all_gather",
    "all_to_all",
    "all_reduce",
    "reduce_scatter",
    "exchange",
    "reduce_exchange",
)

#: The steps in which nothing is sent.
LOCAL_STEPS = ("slice", "fill", "reshape")

#: The steps that connect the ranks of both meshes, not groups of one.
EXCHANGES = ("exchange", "reduce_exchange")


class Transfer(NamedTuple):
    """A box of the global tensor that goes between this rank and ``peer`` (which may be the rank itself)."""

    peer: int
    box: Bounds

    @property
    def count(self) -> int:  # type: ignore[override]
        """Number of elements."""
        return math.prod(stop - start for start, stop in self.box)


def overlap(a: Bounds, b: Bounds) -> Bounds | None:
    """The common box of two boxes, or None if they share no element.

    >>> overlap(((0, 4), (0, 4)), ((2, 6), (1, 3)))
    ((2, 4), (1, 3))
    """
    box = tuple((max(p, r), min(q, s)) for (p, q), (r, s) in zip(a, b))
    return None if any(start >= stop for start, stop in box) else box


@dataclass(frozen=True)
class Step:
    """A collective between two layouts of a tensor.

    Args:
        collective: one of :data:`STEP_COLLECTIVES`.
        axes: the mesh axes along which the groups communicate; empty for exchanges and local steps.
        src: the layout before.
        dst: the layout after.
        shape: global shape of the tensor.
        op: the reduction, for steps that reduce; the pending one, for fill.
        to_shape: the global shape after, where the step changes it: a ``reshape`` of each shard as it is, or an
            ``exchange`` by row-major element numbers (:mod:`~spmdsim.redistribution.reshape.flat`).
    """

    collective: str
    axes: tuple[str, ...]
    src: Layout
    dst: Layout
    shape: tuple[int, ...]
    op: str | None = None
    to_shape: tuple[int, ...] | None = None

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

    def block(self, rank: int) -> int:
        """Elements of the block that ``rank`` reduces in an all_reduce."""
        held = math.prod(self.dst.local_shape(self.shape, rank))
        return split_block(0, held, self.src.mesh.axis_size(*self.axes), self.place(rank))[1]

    def nbytes(self, rank: int, itemsize: int) -> int:
        """Bytes ``rank`` receives from others.

        Reductions count as :func:`reduction_elements` says: reduce_scatter ``(n-1)`` times the own block,
        all_reduce that plus the rest of the buffer.
        """
        if self.collective == "reduce_exchange":
            return itemsize * self._summed(rank, 0)
        if self.collective in LOCAL_STEPS or rank not in self.dst.mesh:
            return 0
        if self.collective == "exchange" and self.to_shape is not None:
            from spmdsim.redistribution.reshape.flat import flat_receives

            flat = flat_receives(self.src, self.dst, self.shape, self.to_shape, rank)
            return itemsize * sum(t.count for t in flat if t.peer != rank)
        mine = math.prod(self.dst.local_shape(self.shape, rank))
        mesh = self.src.mesh
        if self.collective in ("all_reduce", "reduce_scatter"):
            size = mesh.axis_size(*self.axes)
            place = self.place(rank) if self.collective == "all_reduce" else 0
            return itemsize * int(reduction_elements(self.collective, size, mine, place))
        if rank not in mesh:
            return itemsize * mine
        own = overlap(self.src.bounds(self.shape, rank), self.dst.bounds(self.shape, rank))
        return itemsize * (mine - (0 if own is None else Transfer(rank, own).count))

    def sent_nbytes(self, rank: int, itemsize: int) -> int:
        """Bytes ``rank`` sends to others; reductions count as in :meth:`nbytes`, the blocks going the other way."""
        if self.collective == "reduce_exchange":
            return itemsize * self._summed(rank, 1)
        if self.collective in LOCAL_STEPS or rank not in self.src.mesh:
            return 0
        if self.to_shape is not None:
            from spmdsim.redistribution.reshape.flat import flat_sends

            flat = flat_sends(self.src, self.dst, self.shape, self.to_shape, rank)
            return itemsize * sum(len(places) for peer, places in flat if peer != rank)
        if self.collective == "exchange":
            from spmdsim.redistribution.exchange.direct import sends

            parts = sends(self.src, self.dst, self.shape, rank)
            return itemsize * sum(part.count for part in parts if part.peer != rank)
        if self.collective == "all_reduce":
            return self.nbytes(rank, itemsize)
        held = math.prod(self.src.local_shape(self.shape, rank))
        if self.collective == "all_gather":
            return itemsize * (self.src.mesh.axis_size(*self.axes) - 1) * held
        own = overlap(self.src.bounds(self.shape, rank), self.dst.bounds(self.shape, rank))
        mine = 0 if own is None else Transfer(rank, own).count
        whole = {*self.src.split_axes, *self.axes} == {
            *self.dst.split_axes
        } and self.src.mesh == self.dst.mesh
        if self.collective != "reduce_scatter" or whole:
            return itemsize * (held - mine)
        if self.dst.is_even(self.shape):  # the blocks are only a part of what is held
            return itemsize * (self.src.mesh.axis_size(*self.axes) - 1) * mine
        others = (member for member in self.group(rank) if member != rank)
        return itemsize * sum(math.prod(self.dst.local_shape(self.shape, member)) for member in others)

    def _summed(self, rank: int, side: int) -> int:
        """Elements that a rank receives (0) or sends (1) in a direct reduction."""
        from spmdsim.redistribution.exchange.direct_reduction import totals

        counts = totals(self.src, self.dst, self.shape)[side]
        return counts[rank] if rank < len(counts) else 0

    def __str__(self) -> str:
        over = f" over {','.join(self.axes)}" if self.axes else ""
        return f"{self.collective}{over}: {self.src.short()} -> {self.dst.short()}"


def group_transfers(step: Step, rank: int, members: Sequence[int]) -> tuple[Transfer, ...]:
    """What ``rank`` receives from each member of its group in a placing step, itself included."""
    target = step.dst.bounds(step.shape, rank)
    boxes = ((m, overlap(step.src.bounds(step.shape, m), target)) for m in members)
    return tuple(Transfer(m, box) for m, box in boxes if box is not None)
