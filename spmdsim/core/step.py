"""Steps of redistributions: a step is one collective between two layouts; find the cheapest path of steps.

A step's two layouts state which rank sends which box to which rank. A rank receives, from each member of its group,
the overlap of the member's source box with its own target box. Placing the boxes gives all_gather, all_to_all and
slice; reducing them gives all_reduce and reduce_scatter.

The plain planner goes from layout to layout on one mesh. Splits are nested, so only the last axes of a dim can be
gathered or moved away, and axes can only be appended at the end. A world may receive another planner:
:mod:`spmdsim.redistribution` finds exact plans, across meshes and shapes, too.

Next: :mod:`spmdsim.core.element_types`.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any, NamedTuple, Protocol

from spmdsim.core.layout import Bounds, Layout, split_block
from spmdsim.core.notation.rules import Shape
from spmdsim.errors import PlanError
from spmdsim.pictured import ShortRepr

Index = tuple[slice, ...]

#: The steps in which nothing is sent.
LOCAL_STEPS = ("slice", "fill", "reshape", "window")
#: The steps that connect the ranks of both meshes, not groups of one mesh.
EXCHANGES = ("exchange", "reduce_exchange")
#: The collectives that place received boxes in the target box.
PLACING = ("all_gather", "all_to_all", "exchange")
#: The collectives that reduce blocks; :func:`reduction_elements` counts what they receive.
REDUCING = ("all_reduce", "reduce_scatter")


def overlap(a: Bounds, b: Bounds) -> Bounds | None:
    """Return the common box of two boxes, or None if they share no element.

    >>> overlap(((0, 4), (0, 4)), ((2, 6), (1, 3)))
    ((2, 4), (1, 3))
    """
    box = tuple([(p if p > r else r, q if q < s else s) for (p, q), (r, s) in zip(a, b)])
    return None if [start for start, stop in box if start >= stop] else box


def within(box: Bounds, outer: Bounds) -> Index:
    """Return ``box`` as slices relative to the start of ``outer``."""
    return tuple(slice(start - base, stop - base) for (start, stop), (base, _) in zip(box, outer))


def volume(box: Bounds) -> int:
    """Return the number of elements of a box."""
    return math.prod(stop - start for start, stop in box)


def reduction_elements(collective: str, members: int, result_size: Any, position: Any = 0) -> Any:
    """Return the number of elements that a rank receives in a bandwidth-optimal reduction.

    Args:
        collective: "reduce_scatter", or anything else for "all_reduce".
        members: the number of ranks in the group.
        result_size: the number of elements that the rank owns afterwards, or an array of numbers.
        position: the position of the rank in its group, or an array of positions. Position 0 is the busiest one.

    >>> reduction_elements("reduce_scatter", 4, 10), reduction_elements("all_reduce", 4, 10)
    (30, 16)
    """
    if collective == "reduce_scatter":
        return (members - 1) * result_size
    block = split_block(0, result_size, members, position)[1]
    return (members - 1) * block + result_size - block


@dataclass(frozen=True, repr=False)
class Step(ShortRepr):
    """Collective between two layouts of a tensor.

    Args:
        collective: ``slice``, which is local, ``all_gather``, ``all_to_all``, ``all_reduce`` or ``reduce_scatter``;
            worlds outside of core run more (:data:`spmdsim.worlds.programs.STEP_COLLECTIVES`).
        axes: the mesh axes along which the groups communicate; empty for exchanges and local steps.
        src: the layout before the step.
        dst: the layout after the step.
        shape: the tensor's global shape before the step.
        op: the reduction that the step carries out; for "fill", the reduction that is pending after it; else None.
        to_shape: the global shape after the step if the step changes it, which no step of core does; else None.
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
        """Hash of the step, derived once: caches look steps up by it."""
        return hash(self)

    @property
    def shape_after(self) -> tuple[int, ...]:
        """Global shape after the step."""
        return self.shape if self.to_shape is None else self.to_shape

    def group(self, rank: int) -> tuple[int, ...]:
        """Return the ranks of ``rank``'s group, including ``rank``.

        The first of the step's axes is the major one.
        """
        return self.src.mesh.group(rank, *self.axes)

    def group_position(self, rank: int) -> int:
        """Return the position of ``rank`` among the sorted ranks of its group, from 0.

        In an all_reduce, the rank reduces the block with this number.

        Raises:
            LayoutError: If the source mesh lacks the rank.
        """
        mesh = self.src.mesh
        if mesh.ranks is not None:
            return sorted(self.group(rank)).index(rank)
        coords, position = mesh.coords(rank), 0  # The members are not listed, because there may be a million.
        for axis in sorted(self.axes, key=mesh.axis_index):
            position = position * mesh.axis_size(axis) + coords[mesh.axis_index(axis)]
        return position

    def nbytes(self, rank: int, itemsize: int) -> int:
        """Return the bytes that ``rank`` receives from other ranks, for elements of ``itemsize`` bytes."""
        return itemsize * self.received_elements(rank)

    def received_elements(self, rank: int) -> int:
        """Return the number of elements that ``rank`` receives from other ranks.

        * 0 for local steps, and for ranks outside the target mesh.
        * For reductions, see :func:`reduction_elements`.
        * Otherwise the elements of the rank's target shard that its source shard lacks.

        Subclasses override it for other collectives.

        Raises:
            PlanError: If this class does not know the step's collective, or the step changes the global shape.
        """
        if self.collective in LOCAL_STEPS or rank not in self.dst.mesh:
            return 0
        if self.to_shape is not None or self.collective not in (*PLACING, *REDUCING):
            raise PlanError(f"{type(self).__name__} does not count the elements of {self}")
        target = self.dst.bounds(self.shape, rank)
        if self.collective in REDUCING:
            size = self.src.mesh.axis_size(*self.axes)
            return int(reduction_elements(self.collective, size, volume(target), self.group_position(rank)))
        own_box = overlap(self.src.bounds(self.shape, rank), target) if rank in self.src.mesh else None
        return volume(target) - (0 if own_box is None else volume(own_box))

    def __str__(self) -> str:
        over = f" over {','.join(self.axes)}" if self.axes else ""
        return f"{self.collective}{over}: {self.src.placement_text()} -> {self.dst.placement_text()}"


#: A function that returns the cost of a step, from the step and the bytes of an element.
Price = Callable[[Step, int], float]


class Route(Protocol):
    """Interface of plans: steps from one layout to another."""

    @property
    def dst(self) -> Layout:
        """Layout at the end of the route."""

    @property
    def steps(self) -> tuple[Step, ...]:
        """Collectives in their order."""

    @property
    def shape_after(self) -> Shape:
        """Global shape at the end of the route."""


class ShortestRoute(NamedTuple):
    """Result of :func:`shortest_route`: the layout at the end, the steps, and the global shape at the end."""

    dst: Layout
    steps: tuple[Step, ...]
    shape_after: Shape


def shortest_route(src: Layout, dst: Layout, shape: Shape, itemsize: int, price: Price) -> ShortestRoute:
    """Return the cheapest path of steps between two layouts on one mesh (Dijkstra's algorithm).

    The cost of a path is the sum of its steps' costs. Of several paths with equal costs it returns one with the fewest
    steps. Equal layouts give a route without steps.

    Args:
        src: the first layout.
        dst: the last layout.
        shape: the tensor's global shape.
        itemsize: the bytes of an element.
        price: returns the cost of a step for elements of ``itemsize`` bytes; must not be negative.

    Raises:
        PlanError: If no path exists: the meshes or the numbers of dims differ, or a reduction is pending in ``dst``
            only.

    >>> from spmdsim.core import Mesh
    >>> mesh = Mesh((2, 2), ("a", "b"))
    >>> route = shortest_route(mesh("a", "b"), mesh("a", None), (8, 8), 4, lambda step, size: step.nbytes(0, size))
    >>> [str(step) for step in route.steps]
    ['all_gather over b: S(0)S(1) -> S(0)R']
    """
    if src.mesh != dst.mesh or len(src.dims) != len(dst.dims) or not {*dst.partial} <= {*src.partial}:
        raise PlanError(f"no steps lead from {src} to {dst}: meshes, dims and partial must fit")
    tie_breaker, visited = count(), set()
    queue: list[tuple[float, int, int, Layout, tuple[Step, ...]]] = [(0.0, 0, next(tie_breaker), src, ())]
    while queue:
        cost, length, _, layout, steps = heapq.heappop(queue)
        if layout == dst:
            return ShortestRoute(dst, steps, shape)
        if layout not in visited:
            visited.add(layout)
            for step in _list_next_steps(layout, dst, shape):
                total = cost + price(step, itemsize)
                heapq.heappush(queue, (total, length + 1, next(tie_breaker), step.dst, (*steps, step)))
    raise PlanError(f"no collective steps lead from {src} to {dst}")


def _list_next_steps(layout: Layout, dst: Layout, shape: Shape) -> Iterator[Step]:
    """Yield the steps from ``layout`` that can be part of a cheapest path to ``dst``.

    In each dim, the axes are compared with the target's axes of the dim. The axes behind the common beginning
    are *surplus*. Without surplus axes, the target's further axes are *missing*. For example, of ("a", "b") to
    ("a", "c") the axis "b" is surplus; of ("a",) to ("a", "c") the axis "c" is missing. The steps are:

    - slice: adds the first missing axis, if it is replicated.
    - reduce_scatter: adds the first missing axes, one or more, if their reductions are pending, but not in the
      target.
    - all_gather: removes the last surplus axes, one or more.
    - all_to_all: moves the last surplus axes, one or more, to the end of another dim, if the target's axes of
      that dim begin with the axes that it then has.
    - all_reduce: carries out all reductions that are not pending in the target.

    Args:
        layout: the layout before the steps.
        dst: the layout that the path shall reach, on the mesh of ``layout``.
        shape: the tensor's global shape.
    """

    def step(collective: str, axes: Sequence[str], dims: Any, partial: Any = layout.partial) -> Step:
        op = layout.reduce_op if collective in REDUCING else None
        return Step(collective, tuple(axes), layout, Layout(layout.mesh, dims, partial), shape, op)

    def with_entries(*changed: tuple[int, tuple[str, ...]]) -> list[tuple[str, ...]]:
        return [dict(changed).get(dim, entry) for dim, entry in enumerate(layout.dims)]

    reducible = [axis for axis, op in layout.partial if (axis, op) not in dst.partial]
    free = {*layout.replicated_axes}
    for dim, (entry, target) in enumerate(zip(layout.dims, dst.dims)):
        common = 0  # the number of leading axes that the dim keeps
        while common < min(len(entry), len(target)) and entry[common] == target[common]:
            common += 1
        # The axes that the dim lacks, and those behind the common ones that it must lose first.
        missing, surplus = target[len(entry) :] if common == len(entry) else (), entry[common:]
        if missing and missing[0] in free:
            yield step("slice", (), with_entries((dim, entry + missing[:1])))
        for k in range(1, len(missing) + 1):
            if {*missing[:k]} <= {*reducible}:
                remaining = [(axis, op) for axis, op in layout.partial if axis not in missing[:k]]
                yield step("reduce_scatter", missing[:k], with_entries((dim, entry + missing[:k])), remaining)
        for k in range(1, len(surplus) + 1):
            yield step("all_gather", surplus[-k:], with_entries((dim, entry[:-k])))
            for to_dim, target_axes in enumerate(dst.dims):
                moved = layout.dims[to_dim] + surplus[-k:]
                if to_dim != dim and target_axes[: len(moved)] == moved:
                    yield step("all_to_all", surplus[-k:], with_entries((dim, entry[:-k]), (to_dim, moved)))
    if reducible:
        yield step("all_reduce", reducible, layout.dims, dst.partial)
