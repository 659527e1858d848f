"""One step of a redistribution, a collective that takes a tensor from one layout to another, as a value; and the shortest path of steps.

Who sends which box to whom follows from a step's two layouts: a rank receives, from each member of its group, the overlap
of the member's source box with its own target box. Placing the boxes gives all_gather, all_to_all and slice; reducing
them gives all_reduce and reduce_scatter.

The plain planner goes from layout to layout on one mesh. Splits are nested, so only the last axes of a dim can be gathered or
moved away, and axes can only be appended at the end. A world may be given another
planner: :mod:`spmdsim.redistribution` finds exact plans, across meshes and shapes, too.

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

#: The steps in which nothing is sent, and those that connect the ranks of both meshes, not groups of one.
LOCAL_STEPS = ("slice", "fill", "reshape", "window")
EXCHANGES = ("exchange", "reduce_exchange")
#: The collectives after which a rank has its target box, received from those that had it.
PLACING = ("all_gather", "all_to_all", "exchange")
#: The collectives that reduce blocks as :func:`reduction_elements` says.
REDUCING = ("all_reduce", "reduce_scatter")


def overlap(a: Bounds, b: Bounds) -> Bounds | None:
    """Return the common box of two boxes, or None if they share no element.

    >>> overlap(((0, 4), (0, 4)), ((2, 6), (1, 3)))
    ((2, 4), (1, 3))
    """
    box = tuple([(p if p > r else r, q if q < s else s) for (p, q), (r, s) in zip(a, b)])
    return None if [start for start, stop in box if start >= stop] else box


def within(box: Bounds, outer: Bounds) -> Index:
    """Return the box as slices relative to the start of ``outer``."""
    return tuple(slice(start - base, stop - base) for (start, stop), (base, _) in zip(box, outer))


def volume(box: Bounds) -> int:
    """Number of elements of a box."""
    return math.prod(stop - start for start, stop in box)


def reduction_elements(collective: str, members: int, held: Any, place: Any = 0) -> Any:
    """Return the number of elements that a rank receives in a bandwidth-optimal reduction of ``members`` ranks.

    After it the rank has ``held`` elements (a number, or an array). ``place`` is the position of the rank in its group; the
    rank at position 0, the default, is the busiest.

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
        """Return the ranks of ``rank``'s group, major axis first, including ``rank``."""
        return self.src.mesh.group(rank, *self.axes)

    def place(self, rank: int) -> int:
        """Return the position of ``rank`` among the sorted ranks of its group, which is the number of its block in an all_reduce."""
        mesh = self.src.mesh
        if mesh.ranks is not None:
            return sorted(self.group(rank)).index(rank)
        coords, place = mesh.coords(rank), 0  # without listing the group's members: they may be a million
        for axis in sorted(self.axes, key=mesh.axis_index):
            place = place * mesh.axis_size(axis) + coords[mesh.axis_index(axis)]
        return place

    def nbytes(self, rank: int, itemsize: int) -> int:
        """Return the bytes that ``rank`` receives from others."""
        return itemsize * self.received_elements(rank)

    def received_elements(self, rank: int) -> int:
        """Return the number of elements that ``rank`` receives from others; classes of other collectives override it.

        Raises:
            PlanError: If the step's class does not know its collective.
        """
        if self.collective in LOCAL_STEPS or rank not in self.dst.mesh:
            return 0
        if self.to_shape is not None or self.collective not in (*PLACING, *REDUCING):
            raise PlanError(f"{type(self).__name__} does not count the elements of {self}")
        target = self.dst.bounds(self.shape, rank)
        if self.collective in REDUCING:
            size = self.src.mesh.axis_size(*self.axes)
            return int(reduction_elements(self.collective, size, volume(target), self.place(rank)))
        own = overlap(self.src.bounds(self.shape, rank), target) if rank in self.src.mesh else None
        return volume(target) - (0 if own is None else volume(own))

    def __str__(self) -> str:
        over = f" over {','.join(self.axes)}" if self.axes else ""
        return f"{self.collective}{over}: {self.src.short()} -> {self.dst.short()}"


#: What a step of elements of so many bytes costs.
Price = Callable[[Step, int], float]


class Route(Protocol):
    """The interface of plans: steps from one layout to another."""

    @property
    def dst(self) -> Layout:
        """The layout at the end."""

    @property
    def steps(self) -> tuple[Step, ...]:
        """The collectives in order."""

    @property
    def shape_after(self) -> Shape:
        """The global shape at the end."""


class ShortestRoute(NamedTuple):
    """The result of :func:`shortest_route`: its end, its steps and the shape at its end."""

    dst: Layout
    steps: tuple[Step, ...]
    shape_after: Shape


def shortest_route(src: Layout, dst: Layout, shape: Shape, itemsize: int, price: Price) -> ShortestRoute:
    """Return the cheapest path of steps, with the fewest steps among equal costs (Dijkstra). Raise PlanError if there is none.

    >>> from spmdsim.core import Mesh
    >>> mesh = Mesh((2, 2), ("a", "b"))
    >>> route = shortest_route(mesh("a", "b"), mesh("a", None), (8, 8), 4, lambda step, size: step.nbytes(0, size))
    >>> [str(step) for step in route.steps]
    ['all_gather over b: S(0)S(1) -> S(0)R']
    """
    if src.mesh != dst.mesh or len(src.dims) != len(dst.dims) or not {*dst.partial} <= {*src.partial}:
        raise PlanError(f"no steps on one mesh lead from {src} to {dst}")
    number, settled = count(), set()
    queue: list[tuple[float, int, int, Layout, tuple[Step, ...]]] = [(0.0, 0, next(number), src, ())]
    while queue:
        cost, length, _, here, steps = heapq.heappop(queue)
        if here == dst:
            return ShortestRoute(dst, steps, shape)
        if here not in settled:
            settled.add(here)
            for step in _moves(here, dst, shape):
                total = cost + price(step, itemsize)
                heapq.heappush(queue, (total, length + 1, next(number), step.dst, (*steps, step)))
    raise PlanError(f"no collective steps lead from {src} to {dst}")


def _moves(here: Layout, dst: Layout, shape: Shape) -> Iterator[Step]:
    """Yield the steps that may be useful: reduce pending axes, split by the target's axes, gather all others."""

    def step(collective: str, axes: Sequence[str], dims: Any, partial: Any = here.partial) -> Step:
        op = here.reduce_op if collective in REDUCING else None
        return Step(collective, tuple(axes), here, Layout(here.mesh, dims, partial), shape, op)

    def with_entries(*changed: tuple[int, tuple[str, ...]]) -> list[tuple[str, ...]]:
        return [dict(changed).get(dim, entry) for dim, entry in enumerate(here.dims)]

    reducible = [axis for axis, op in here.partial if (axis, op) not in dst.partial]
    free = {*here.replicated_axes}
    for dim, (entry, target) in enumerate(zip(here.dims, dst.dims)):
        common = next(
            (k for k, (a, b) in enumerate(zip(entry, target)) if a != b), min(len(entry), len(target))
        )
        ahead, beyond = target[len(entry) :] if common == len(entry) else (), entry[common:]
        if ahead and ahead[0] in free:
            yield step("slice", (), with_entries((dim, entry + ahead[:1])))
        for k in range(1, len(ahead) + 1):
            if {*ahead[:k]} <= {*reducible}:
                left = [(axis, op) for axis, op in here.partial if axis not in ahead[:k]]
                yield step("reduce_scatter", ahead[:k], with_entries((dim, entry + ahead[:k])), left)
        for k in range(1, len(beyond) + 1):
            yield step("all_gather", beyond[-k:], with_entries((dim, entry[:-k])))
            for other, wanted in enumerate(dst.dims):
                moved = here.dims[other] + beyond[-k:]
                if other != dim and wanted[: len(moved)] == moved:
                    yield step("all_to_all", beyond[-k:], with_entries((dim, entry[:-k]), (other, moved)))
    if reducible:
        yield step("all_reduce", reducible, here.dims, dst.partial)
