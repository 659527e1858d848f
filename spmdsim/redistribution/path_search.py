"""Search the cheapest path of collective steps to a target layout.

A state is a layout without its mesh: the axes that split each dimension, and the axes that are still pending. State are
nested, so only the last axes of a dimension can be gathered or moved away, and axes can only be appended at the end.
Steps are directed: an axis is placed where the target needs it, after the axes that precede it in the target, or it is
gathered. The direct exchange reaches the other targets: swapped axes and other cuts.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import NamedTuple

from spmdsim.core import Layout
from spmdsim.core.layout import largest_block
from spmdsim.core.step import REDUCING, Step, reduction_elements
from spmdsim.redistribution.bound.lower_bound import kept_axes
from spmdsim.redistribution.grid import common_axes, next_run
from spmdsim.redistribution.price import Prices

Dims = tuple[tuple[str, ...], ...]


class State(NamedTuple):
    """The axes that split each dimension, major first, and the axes whose values have to be reduced."""

    dims: Dims
    partial: tuple[str, ...]


class StateStep(NamedTuple):
    """A step between states: a collective over axes that leads to ``state``."""

    collective: str
    axes: tuple[str, ...]
    state: State


class Target:
    """The target of a search, and the steps that lead towards it.

    The target is on the source's mesh. Its pending axes are pending in the source, too.
    """

    def __init__(self, src: Layout, dst: Layout, shape: tuple[int, ...]) -> None:
        self.mesh, self.shape = src.mesh, shape
        kept = kept_axes(src, dst)
        self.dims = dst.dims
        self.start = State(src.dims, tuple([axis for axis in src.partial_axes if axis not in kept]))
        self.goal = State(dst.dims, ())
        self.movable = {*src.mesh.axes} - {*kept}
        self.wanted = {axis for entry in dst.dims for axis in entry}
        self._local: dict[Dims, tuple[int, list[int]]] = {}
        self._members: dict[tuple[str, ...], int] = {}

    # -- sizes --------------------------------------------------------------------------------------

    def local(self, dims: Dims) -> tuple[int, list[int]]:
        """Return ``(elements, shape)`` of the largest shard."""
        local = self._local.get(dims)
        if local is None:
            members = self.members
            shape = [largest_block(size, members(entry)) for size, entry in zip(self.shape, dims)]
            local = self._local[dims] = (math.prod(shape), shape)
        return local

    def members(self, axes: tuple[str, ...]) -> int:
        """Return the number of ranks of a group along axes."""
        members = self._members.get(axes)
        if members is None:
            size_of = self.mesh.size_of
            members = self._members[axes] = math.prod([size_of[axis] for axis in axes])
        return members

    def next_steps(self, state: State) -> list[StateStep]:
        """Return the steps from a state that lead towards the target."""
        sliced = self._slice(state)
        if sliced is not None:
            # A slice sends nothing and makes later steps smaller. A reduce_scatter slices by itself.
            return [sliced, *self._reduce_scatter_steps(state)] if state.partial else [sliced]
        return self._reductions(state) if state.partial else self._placements(state)

    # -- slice --------------------------------------------------------------------------------------

    def _slice(self, state: State) -> StateStep | None:
        if state.dims == self.dims:
            return None
        free = self.movable.difference(state.partial, *state.dims)
        if free.isdisjoint(self.wanted):
            return None
        runs = [next_run(entry, target, free) for entry, target in zip(state.dims, self.dims)]
        if not any(runs):
            return None
        dims = tuple([entry + run for entry, run in zip(state.dims, runs)])
        return StateStep("slice", tuple([axis for run in runs for axis in run]), State(dims, state.partial))

    # -- reductions ---------------------------------------------------------------------------------

    def _reductions(self, state: State) -> list[StateStep]:
        dims, partial = state
        axes = {*partial}
        runs = [next_run(entry, target, axes) for entry, target in zip(dims, self.dims)]
        fitting = [dim for dim, run in enumerate(runs) if run]
        steps = []
        if len(fitting) > 1:
            every = tuple([axis for run in runs for axis in run])
            after = tuple([entry + run for entry, run in zip(dims, runs)])
            steps.append(StateStep("reduce_scatter", every, State(after, _without(partial, every))))
        steps += [_scattered(state, dim, runs[dim]) for dim in fitting]
        lost = tuple([axis for axis in partial if axis not in self.wanted])
        if lost and len(lost) < len(partial):
            steps.append(StateStep("all_reduce", lost, State(dims, _without(partial, lost))))
        steps.append(StateStep("all_reduce", partial, State(dims, ())))
        anywhere = self._even_dims([entry + partial for entry in dims])
        steps += [_scattered(state, dim, partial) for dim in anywhere if runs[dim] != partial]
        return steps + self._reduce_scatter_steps(state)

    def _reduce_scatter_steps(self, state: State) -> list[StateStep]:
        """Return reduce_scatter steps that reduce all pending axes and split the result over replicated axes, too.

        The target's next axes come first. The other axes follow in one dimension and are gathered later.
        """
        dims, partial = state
        free = self.movable.difference(*dims)
        runs = [next_run(entry, target, free) for entry, target in zip(dims, self.dims)]
        placed = [entry + run for entry, run in zip(dims, runs)]
        rest = tuple([axis for axis in self.mesh.axes if axis in free.difference(*runs)])
        steps = []
        for axes in dict.fromkeys((rest, tuple([axis for axis in rest if axis in partial]))):
            for dim in self._even_dims([entry + axes for entry in placed]):
                after = tuple([e + axes if d == dim else e for d, e in enumerate(placed)])
                steps.append(StateStep("reduce_scatter", partial, State(after, ())))
        return steps

    def _even_dims(self, dims: Sequence[tuple[str, ...]]) -> list[int]:
        """Return the dimensions that are cut into equal blocks, or all dimensions if there is none."""
        equal = [d for d, entry in enumerate(dims) if self.shape[d] % self.members(entry) == 0]
        return equal or [*range(len(dims))]

    # -- placements ---------------------------------------------------------------------------------

    def _placements(self, state: State) -> list[StateStep]:
        dims = state.dims
        beyond: list[tuple[int, tuple[str, ...]]] = []  # axes of a dimension that the target splits otherwise
        ahead: list[tuple[int, tuple[str, ...]]] = []  # axes that the target has after those of a dimension
        for dim, (entry, target) in enumerate(zip(dims, self.dims)):
            common = common_axes(entry, target)
            if common < len(entry):
                beyond.append((dim, entry[common:]))
            elif common < len(target):
                ahead.append((dim, target[common:]))
        steps = []
        for dim, extra in beyond if ahead else ():
            for count in range(1, len(extra) + 1):
                axes = {*extra[-count:]}
                for other, run in ahead:
                    if {*run[:count]} == axes:
                        after = _with(dims, dim, dims[dim][:-count])
                        after = _with(after, other, dims[other] + run[:count])
                        steps.append(StateStep("all_to_all", run[:count], State(after, ())))
        for dim, extra in beyond:
            for count in range(len(extra), 0, -1):
                after = _with(dims, dim, dims[dim][:-count])
                steps.append(StateStep("all_gather", extra[-count:], State(after, ())))
        if len(beyond) > 1:
            after = dims
            for dim, extra in beyond:
                after = _with(after, dim, dims[dim][: -len(extra)])
            every = tuple([axis for _, extra in beyond for axis in extra])
            steps.append(StateStep("all_gather", every, State(after, ())))
        return steps


def _scattered(state: State, dim: int, axes: tuple[str, ...]) -> StateStep:
    after = _with(state.dims, dim, state.dims[dim] + axes)
    return StateStep("reduce_scatter", axes, State(after, _without(state.partial, axes)))


def _with(dims: Dims, dim: int, entry: tuple[str, ...]) -> Dims:
    """Return ``dims`` with another entry."""
    return (*dims[:dim], entry, *dims[dim + 1 :])


def _without(axes: tuple[str, ...], gone: tuple[str, ...]) -> tuple[str, ...]:
    return tuple([axis for axis in axes if axis not in gone])


#: The largest number of states that a search visits.
MOST_STATES = 2000
#: Seconds that a step costs besides its modelled time, so that fewer steps win between equal times.
STEP_PENALTY = 1e-15


class PathState:
    """A state with the cheapest path to it so far. No later path to a settled state is cheaper.

    Attributes:
        elements, shape: number of elements and shape of the largest shard.
        seconds: the price of the path, with `STEP_PENALTY` per step.
        before, step: the previous state of the path, and the step from it.
    """

    __slots__ = ("before", "elements", "seconds", "settled", "shape", "state", "step")

    def __init__(self, state: State, elements: int, shape: list[int], seconds: float) -> None:
        self.state, self.elements, self.shape, self.seconds = state, elements, shape, seconds
        self.settled = False
        self.before: PathState | None = None
        self.step: StateStep | None = None

    @property
    def steps(self) -> list[StateStep]:
        """The steps of the path."""
        if self.before is None or self.step is None:
            return []
        return [*self.before.steps, self.step]

    @property
    def copied(self) -> int:
        """Elements that the slices of the path copy. The search does not price them."""
        if self.before is None or self.step is None:
            return 0
        return self.before.copied + (self.elements if self.step.collective == "slice" else 0)


class Paths(NamedTuple):
    """The result of a search: the path to the target or None, and the paths to states without pending axes."""

    target: PathState | None
    reduced: tuple[PathState, ...]


def search(
    src: Layout,
    dst: Layout,
    shape: tuple[int, ...],
    itemsize: int,
    prices: Prices,
    limit: int,
    bound: float = float("inf"),
) -> Paths:
    """Return the cheapest paths of collective steps to a layout on the same mesh.

    Args:
        src: the layout before.
        dst: the layout after; its pending axes are pending in ``src``, too.
        shape: global shape.
        itemsize: bytes per element.
        prices: prices of collectives on the mesh.
        limit: the largest number of elements of a shard in between.
        bound: the search leaves out paths that take so many seconds or more.
    """
    goal = Target(src, dst, shape)
    start = PathState(goal.start, *goal.local(goal.start.dims), 0.0)
    paths = {goal.start: start}
    queue = [(0.0, 0, start)]
    reduced: list[PathState] = []
    states = pushed = 0
    while queue and states < MOST_STATES:
        seconds, _, current = heapq.heappop(queue)
        if current.settled:
            continue
        current.settled = True
        states += 1
        if current.state == goal.goal:
            return Paths(current, tuple(reduced))
        for step in goal.next_steps(current.state):
            collective, axes, state = step
            successor = paths.get(state)
            if successor is None:
                successor = paths[state] = PathState(state, *goal.local(state.dims), math.inf)
            if successor.settled or successor.elements > limit:
                continue
            members = goal.members(axes)
            nbytes = _received(collective, members, current, successor) * itemsize
            total = seconds + prices.seconds(collective, members, nbytes, axes) + STEP_PENALTY
            if total < bound and total < successor.seconds:
                if current.state.partial and not state.partial and successor.seconds == math.inf:
                    reduced.append(successor)
                successor.seconds, successor.before, successor.step = total, current, step
                pushed += 1
                heapq.heappush(queue, (total, pushed, successor))
    return Paths(None, tuple(reduced))


def _received(collective: str, members: int, before: PathState, after: PathState) -> int:
    """Return the elements that the busiest rank receives in a step. For uneven blocks, it may be a few more."""
    elements = after.elements
    if collective == "slice":
        return 0
    if collective in REDUCING:
        return int(reduction_elements(collective, members, elements))
    if collective == "all_gather":
        return elements - elements // members
    return elements - math.prod(map(min, before.shape, after.shape))


def one_step(
    src: Layout, dst: Layout, shape: tuple[int, ...], kept: tuple[tuple[str, str], ...]
) -> Step | None:
    """Return the single step that leads to a layout, or None if one step is not enough."""
    goal = Target(src, dst, shape)
    steps = [step for step in goal.next_steps(goal.start) if step.state == goal.goal]
    return build_steps(steps[:1], src, shape, kept)[0] if steps else None


def build_steps(
    path: Sequence[StateStep], src: Layout, shape: tuple[int, ...], kept: tuple[tuple[str, str], ...]
) -> list[Step]:
    """Return the steps of a path that begins at ``src``. The axes of ``kept`` stay pending, with their reductions."""
    steps, layout, op = [], src, src.reduce_op
    for collective, axes, state in path:
        partial = [(axis, str(op)) for axis in state.partial]
        after = Layout(src.mesh, state.dims, (*partial, *kept))
        over = () if collective == "slice" else axes
        steps.append(Step(collective, over, layout, after, shape, op if collective in REDUCING else None))
        layout = after
    return steps
