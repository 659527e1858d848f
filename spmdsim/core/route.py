"""A plain planner: the shortest path of collective steps between two layouts on one mesh.

Splits are nested, so only the last axes of a dim can be gathered or moved away, and axes can only be appended at the
end. A world that knows a better way overrides :meth:`World.plan`: :mod:`spmdsim.redistribution` finds exact plans,
across meshes and shapes, too.

Next: :mod:`spmdsim.core.elements`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple, Protocol

from spmdsim.core.layout import Layout
from spmdsim.core.step import Step
from spmdsim.errors import PlanError
from spmdsim.notation.rule_terms import Shape

#: What a step of elements of so many bytes costs.
Price = Callable[[Step, int], float]


class Route(Protocol):
    """What a world is asked for: steps from one layout to another."""

    @property
    def dst(self) -> Layout:
        """The layout at its end."""

    @property
    def steps(self) -> tuple[Step, ...]:
        """The collectives, in order."""

    @property
    def shape_after(self) -> Shape:
        """Global shape at its end."""


class ShortestRoute(NamedTuple):
    """Such steps."""

    dst: Layout
    steps: tuple[Step, ...]
    shape_after: Shape


def shortest_route(src: Layout, dst: Layout, shape: Shape, itemsize: int, price: Price) -> ShortestRoute:
    """The cheapest path of steps, and of those the one with the fewest (Dijkstra); PlanError if none is on one mesh.

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
    """The steps that make sense: reduce what must be, put axes where the target has them, give up those it has not."""

    def step(collective: str, axes: Sequence[str], dims: Any, partial: Any = here.partial) -> Step:
        op = here.reduce_op if collective in ("all_reduce", "reduce_scatter") else None
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
