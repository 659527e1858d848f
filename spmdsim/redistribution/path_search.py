"""Search the cheapest path of collective steps to a target layout.

A state is a layout without its mesh: the axes that split each dimension, and the axes that are still pending. Splits
are nested, so only the last axes of a dimension can be gathered or moved away, and axes can only be appended at the
end. Steps are directed: an axis is placed where the target needs it, after the axes that precede it in the target, or
it is gathered. The direct exchange reaches the other targets: swapped axes and other cuts.
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
from spmdsim.redistribution.grid import count_common_axes, next_axes
from spmdsim.redistribution.price import Prices

#: The axes that split each dimension, major first.
Dims = tuple[tuple[str, ...], ...]
#: A dimension and some of its axes.
DimAxes = tuple[int, tuple[str, ...]]


class State(NamedTuple):
    """Layout in a search.

    ``dims`` has the axes that split each dimension, major first; ``partial`` the axes that still have to be reduced.
    """

    dims: Dims
    partial: tuple[str, ...]


class StateStep(NamedTuple):
    """Step between states: a collective over ``axes`` that leads to ``state``."""

    collective: str
    axes: tuple[str, ...]
    state: State


class Target:
    """Target of a search, and the steps that lead towards it.

    The target is on the source's mesh. Its pending axes are pending in the source, too, and stay so.

    Attributes:
        start: the state of the source.
        goal: the state of the target.
        movable: the axes that do not stay pending.
        wanted: the axes that split the target.
        inside_axes: the axes whose groups stay inside nodes, if others leave them; else empty.
    """

    def __init__(
        self, src: Layout, dst: Layout, shape: tuple[int, ...], inside_axes: frozenset[str] = frozenset()
    ) -> None:
        self.mesh, self.shape, self.inside_axes = src.mesh, shape, inside_axes
        common_partial = kept_axes(src, dst)
        self.dims = dst.dims
        self.start = State(src.dims, tuple([axis for axis in src.partial_axes if axis not in common_partial]))
        self.goal = State(dst.dims, ())
        self.movable = {*src.mesh.axes} - {*common_partial}
        self.wanted = {axis for entry in dst.dims for axis in entry}
        self._local: dict[Dims, tuple[int, list[int]]] = {}
        self._members: dict[tuple[str, ...], int] = {}

    # -- sizes --------------------------------------------------------------------------------------

    def local(self, dims: Dims) -> tuple[int, list[int]]:
        """Return the number of elements and the shape of the largest shard of a split.

        Args:
            dims: the axes that split each dimension.

        Returns:
            ``(elements, shape)``, cached per ``dims``; the list must not be changed.
        """
        local = self._local.get(dims)
        if local is None:
            members = self.members
            shape = [largest_block(size, members(entry)) for size, entry in zip(self.shape, dims)]
            local = self._local[dims] = (math.prod(shape), shape)
        return local

    def members(self, axes: tuple[str, ...]) -> int:
        """Return the number of ranks of a group along ``axes``.

        It is the product of their sizes, and 1 without axes. Results are cached.
        """
        members = self._members.get(axes)
        if members is None:
            size_of = self.mesh.size_of
            members = self._members[axes] = math.prod([size_of[axis] for axis in axes])
        return members

    def next_steps(self, state: State) -> list[StateStep]:
        """Return the steps from a state that lead towards the target.

        A possible slice comes first and alone, because it sends nothing and makes later steps smaller; only
        reduce_scatter steps, which slice themselves, compete with it.
        """
        sliced = self._slice(state)
        if sliced is not None:
            return [sliced, *self._reduce_scatter_steps(state)] if state.partial else [sliced]
        return self._reductions(state) if state.partial else self._placements(state)

    # -- slice --------------------------------------------------------------------------------------

    def _slice(self, state: State) -> StateStep | None:
        """Return the slice by all free axes that the target needs next, or None if it needs none.

        An axis is free if it neither stays pending nor is pending in the state, and the state splits no dimension by
        it. The target needs the free axes that follow the state's axes of a dimension in the target
        (:func:`~spmdsim.redistribution.grid.next_axes`). One slice takes them in all dimensions.

        Args:
            state: the axes that split each dimension, and the pending axes.
        """
        if state.dims == self.dims:
            return None
        free = self.movable.difference(state.partial, *state.dims)
        if free.isdisjoint(self.wanted):
            return None
        runs = [next_axes(entry, target, free) for entry, target in zip(state.dims, self.dims)]
        if not any(runs):
            return None
        dims = tuple([entry + run for entry, run in zip(state.dims, runs)])
        return StateStep("slice", tuple([axis for run in runs for axis in run]), State(dims, state.partial))

    # -- reductions ---------------------------------------------------------------------------------

    def _reductions(self, state: State) -> list[StateStep]:
        """Return the candidate steps that reduce pending axes; ``state`` has some, and allows no slice.

        A dimension needs those pending axes next that come directly after its present axes in the target
        (:func:`~spmdsim.redistribution.grid.next_axes`). The steps are in this order, possibly with repetitions:

        * reduce_scatter over all axes that dimensions need next, if several dimensions need some;
        * reduce_scatter over the axes that one dimension needs next, for each dimension that needs some;
        * reduce_scatter over the pending axes inside nodes, in each dimension that they cut evenly (in every dimension
          if none is), if other axes are pending, too: fewer bytes leave a node;
        * all_reduce over the pending axes that split nothing in the target, if others are pending, too;
        * all_reduce over all pending axes;
        * reduce_scatter over all pending axes in each dimension that they cut evenly (in every dimension if none is),
          except the steps of the second item;
        * the steps of :meth:`_reduce_scatter_steps`.

        For example, a and b are pending, and a splits dimension 0 of the target: reduce_scatter over a into dimension
        0, all_reduce over b, all_reduce over both, and reduce_scatter over both into each dimension.
        """
        dims, partial = state
        axes = {*partial}
        runs = [next_axes(entry, target, axes) for entry, target in zip(dims, self.dims)]
        dims_with_run = [dim for dim, run in enumerate(runs) if run]
        steps = []
        if len(dims_with_run) > 1:
            all_axes = tuple([axis for run in runs for axis in run])
            after = tuple([entry + run for entry, run in zip(dims, runs)])
            steps.append(
                StateStep("reduce_scatter", all_axes, State(after, _without_axes(partial, all_axes)))
            )
        steps += [_reduce_scatter(state, dim, runs[dim]) for dim in dims_with_run]
        near_axes = tuple([axis for axis in partial if axis in self.inside_axes])
        if near_axes and len(near_axes) < len(partial):
            near_dims = self._even_dims([entry + near_axes for entry in dims])
            steps += [_reduce_scatter(state, dim, near_axes) for dim in near_dims]
        unused_axes = tuple([axis for axis in partial if axis not in self.wanted])
        if unused_axes and len(unused_axes) < len(partial):
            steps.append(
                StateStep("all_reduce", unused_axes, State(dims, _without_axes(partial, unused_axes)))
            )
        steps.append(StateStep("all_reduce", partial, State(dims, ())))
        even_dims = self._even_dims([entry + partial for entry in dims])
        steps += [_reduce_scatter(state, dim, partial) for dim in even_dims if runs[dim] != partial]
        return steps + self._reduce_scatter_steps(state)

    def _reduce_scatter_steps(self, state: State) -> list[StateStep]:
        """Return reduce_scatter steps that reduce all pending axes and split by all free axes.

        Free axes neither split a dimension of ``state`` nor stay pending; the axes to reduce are among them.

        1. The free axes that dimensions of the target need next split these dimensions.
        2. All remaining free axes split one further dimension. Each dimension that they cut evenly gives a step; if
           they cut none evenly, every dimension does. Axes inside nodes are the major ones, so that a later
           all_gather first leaves the nodes, with fewer bytes.
        3. The same follows with only the pending ones of the remaining free axes.

        Later steps gather what the target does not need. For example, a is pending, b replicates, and a splits
        dimension 0 of the target. In the steps, a splits dimension 0, and b splits dimension 0, dimension 1, or
        nothing.
        """
        dims, partial = state
        free = self.movable.difference(*dims)
        runs = [next_axes(entry, target, free) for entry, target in zip(dims, self.dims)]
        placed = [entry + run for entry, run in zip(dims, runs)]
        free_axes = self._inside_first([axis for axis in self.mesh.axes if axis in free.difference(*runs)])
        steps = []
        for axes in dict.fromkeys((free_axes, tuple([axis for axis in free_axes if axis in partial]))):
            for dim in self._even_dims([entry + axes for entry in placed]):
                after = _replace_entry(tuple(placed), dim, placed[dim] + axes)
                steps.append(StateStep("reduce_scatter", partial, State(after, ())))
        return steps

    def _inside_first(self, axes: Sequence[str]) -> tuple[str, ...]:
        """Return the axes, those inside nodes first."""
        return tuple(sorted(axes, key=lambda axis: axis not in self.inside_axes))

    def _even_dims(self, dims: Sequence[tuple[str, ...]]) -> list[int]:
        """Return the dimensions that ``dims`` cuts into equal blocks; all dimensions if none is."""
        equal = [d for d, entry in enumerate(dims) if self.shape[d] % self.members(entry) == 0]
        return equal or [*range(len(dims))]

    # -- placements ---------------------------------------------------------------------------------

    def _placements(self, state: State) -> list[StateStep]:
        """Return the all_to_all and all_gather steps from a state without pending axes.

        A dimension's axes after those that it has in common with the target's start are surplus. With ("a", "b") in the
        state and ("a", "c") in the target, "b" is surplus.

        - An all_to_all moves the last surplus axes of a dimension to another dimension without surplus, if these are
          the axes that this dimension needs next.
        - An all_gather gathers the last surplus axes of a dimension: all of them, all but the first, and so on down
          to the last one alone.
        - If several dimensions have surplus axes, one more all_gather gathers all of them.

        The list is empty without surplus axes.

        Args:
            state: the axes that split each dimension.
        """
        dims = state.dims
        surplus: list[DimAxes] = []
        missing: list[DimAxes] = []
        for dim, (entry, target) in enumerate(zip(dims, self.dims)):
            common = count_common_axes(entry, target)
            if common < len(entry):
                surplus.append((dim, entry[common:]))
            elif common < len(target):
                missing.append((dim, target[common:]))
        steps = _moves(dims, surplus, missing)
        for dim, surplus_axes in surplus:
            for count in range(len(surplus_axes), 0, -1):
                after = _replace_entry(dims, dim, dims[dim][:-count])
                steps.append(StateStep("all_gather", surplus_axes[-count:], State(after, ())))
        if len(surplus) > 1:
            after = dims
            for dim, surplus_axes in surplus:
                after = _replace_entry(after, dim, dims[dim][: -len(surplus_axes)])
            all_axes = tuple([axis for _, surplus_axes in surplus for axis in surplus_axes])
            steps.append(StateStep("all_gather", all_axes, State(after, ())))
        return steps


def _moves(dims: Dims, surplus: Sequence[DimAxes], missing: Sequence[DimAxes]) -> list[StateStep]:
    """Return the all_to_all steps that move a dimension's last axes to one that needs them next.

    A step moves the last 1, 2, ... surplus axes of one dimension, if the next missing axes of another dimension are
    these axes, in any order. They then have the target's order. For example, from (a, b), () to (a), (b) one step moves
    b.

    Args:
        dims: the axes that split each dimension.
        surplus: ``(dimension, axes)``: the axes that dimensions have to lose, the last of their axes.
        missing: ``(dimension, axes)``: the axes that dimensions have to gain, after those of ``dims``.
    """
    steps = []
    for dim, surplus_axes in surplus:
        for count in range(1, len(surplus_axes) + 1):
            axes = {*surplus_axes[-count:]}
            for to_dim, missing_axes in missing:
                if {*missing_axes[:count]} == axes:
                    without_axes = _replace_entry(dims, dim, dims[dim][:-count])
                    after = _replace_entry(without_axes, to_dim, dims[to_dim] + missing_axes[:count])
                    steps.append(StateStep("all_to_all", missing_axes[:count], State(after, ())))
    return steps


def _reduce_scatter(state: State, dim: int, axes: tuple[str, ...]) -> StateStep:
    """Return the reduce_scatter of ``axes`` that splits ``dim`` by them."""
    after = _replace_entry(state.dims, dim, state.dims[dim] + axes)
    return StateStep("reduce_scatter", axes, State(after, _without_axes(state.partial, axes)))


def _replace_entry(dims: Dims, dim: int, entry: tuple[str, ...]) -> Dims:
    """Return ``dims`` with another entry for one dimension."""
    return (*dims[:dim], entry, *dims[dim + 1 :])


def _without_axes(axes: tuple[str, ...], removed: tuple[str, ...]) -> tuple[str, ...]:
    """Return ``axes`` without the removed ones."""
    return tuple([axis for axis in axes if axis not in removed])


#: The largest number of states that a search visits.
MOST_STATES = 2000
#: Seconds that a step costs besides its modelled time, so that fewer steps win between equal times.
STEP_PENALTY = 1e-15


class PathState:
    """State with the cheapest path to it so far. No later path to a settled state is cheaper.

    Attributes:
        state: the state.
        elements: the number of elements of the largest shard.
        shape: the shape of the largest shard.
        seconds: the price of the path, with `STEP_PENALTY` per step.
        settled: True if the search has visited the state.
        before: the previous state of the path, or None.
        step: the step from it, or None.
    """

    __slots__ = ("before", "elements", "seconds", "settled", "shape", "state", "step")

    def __init__(self, state: State, elements: int, shape: list[int], seconds: float) -> None:
        self.state, self.elements, self.shape, self.seconds = state, elements, shape, seconds
        self.settled = False
        self.before: PathState | None = None
        self.step: StateStep | None = None

    @property
    def steps(self) -> list[StateStep]:
        """Steps of the path."""
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
    """Result of a search: the path to the target, or None, and the paths to states without pending axes."""

    target: PathState | None
    reduced: tuple[PathState, ...]


def search_paths(
    src: Layout,
    dst: Layout,
    shape: tuple[int, ...],
    itemsize: int,
    prices: Prices,
    limit: int,
    bound: float = float("inf"),
) -> Paths:
    """Return the cheapest paths of collective steps to a layout, by Dijkstra's algorithm.

    The states of the search are layouts, its edges are collectives. The price of a path is the sum of its steps'
    seconds and :data:`STEP_PENALTY` seconds per step, so that of equal paths the shorter one wins; local slices cost
    only the penalty. The search ends at the target, if no state is left, or after :data:`MOST_STATES` (2,000) states.

    Args:
        src: the layout before.
        dst: the layout after, on the same mesh; its pending axes are pending in ``src``, too. Not checked.
        shape: the global shape.
        itemsize: the bytes of an element.
        prices: the prices of collectives on the mesh.
        limit: the largest number of elements that a shard may have after a step.
        bound: the seconds that a path must stay below.

    Returns:
        ``(target, reduced)``. ``target`` is the path to ``dst``, or None if the search does not reach it. ``reduced``
        has the paths to states that were first reached by a step that reduced the last pending axis, in that order;
        an exchange may continue them.
    """
    target = Target(src, dst, shape, prices.inside_axes)
    start = PathState(target.start, *target.local(target.start.dims), 0.0)
    paths = {target.start: start}
    queue = [(0.0, 0, start)]
    reduced: list[PathState] = []
    states = tie_breaker = 0
    while queue and states < MOST_STATES:
        seconds, _, current = heapq.heappop(queue)
        if current.settled:
            continue
        current.settled = True
        states += 1
        if current.state == target.goal:
            return Paths(current, tuple(reduced))
        for step in target.next_steps(current.state):
            collective, axes, state = step
            successor = paths.get(state)
            if successor is None:
                successor = paths[state] = PathState(state, *target.local(state.dims), math.inf)
            if successor.settled or successor.elements > limit:
                continue
            members = target.members(axes)
            nbytes = _count_received(collective, members, current, successor) * itemsize
            total = seconds + prices.seconds(collective, members, nbytes, axes) + STEP_PENALTY
            if total < bound and total < successor.seconds:
                if current.state.partial and not state.partial and successor.seconds == math.inf:
                    reduced.append(successor)
                successor.seconds, successor.before, successor.step = total, current, step
                tie_breaker += 1
                heapq.heappush(queue, (total, tie_breaker, successor))
    return Paths(None, tuple(reduced))


def _count_received(collective: str, members: int, before: PathState, after: PathState) -> int:
    """Return the elements that the busiest rank receives in a step between two states.

    With E elements in the largest shard after the step and g ranks in a group, it is

    * slice: 0;
    * all_reduce, reduce_scatter: :func:`~spmdsim.core.step.reduction_elements`;
    * all_gather: E - E // g;
    * all_to_all: E minus the product of the smaller one of the shard's lengths before and after, over the dimensions.

    For uneven blocks the busiest rank may receive a few elements less.
    """
    elements = after.elements
    if collective == "slice":
        return 0
    if collective in REDUCING:
        return int(reduction_elements(collective, members, elements))
    if collective == "all_gather":
        return elements - elements // members
    return elements - math.prod(map(min, before.shape, after.shape))


def find_single_step(
    src: Layout, dst: Layout, shape: tuple[int, ...], still_partial: tuple[tuple[str, str], ...]
) -> Step | None:
    """Return the single step that leads to a layout, or None if one step is not enough.

    Args:
        src: the layout before.
        dst: the layout after, on the same mesh.
        shape: the global shape.
        still_partial: ``(axis, reduction)`` of the axes that stay pending.
    """
    target = Target(src, dst, shape)
    steps = [step for step in target.next_steps(target.start) if step.state == target.goal]
    return build_steps(steps[:1], src, shape, still_partial)[0] if steps else None


def build_steps(
    path: Sequence[StateStep], src: Layout, shape: tuple[int, ...], still_partial: tuple[tuple[str, str], ...]
) -> list[Step]:
    """Convert a path between states into steps between layouts; return [] for an empty path.

    A state has only split dims and pending axes. The layouts of the steps are on the mesh of ``src``. Their pending
    axes have the reduction of ``src``, and those of ``still_partial`` are added. A slice step has no axes, because it
    does not communicate. Only steps that reduce have a reduction.

    Args:
        path: the steps of the search, from ``src`` on.
        src: the layout before.
        shape: the global shape.
        still_partial: ``(axis, reduction)`` of the axes that stay pending all the way.
    """
    steps, layout, op = [], src, src.reduce_op
    for collective, axes, state in path:
        partial = [(axis, str(op)) for axis in state.partial]
        after = Layout(src.mesh, state.dims, (*partial, *still_partial))
        over = () if collective == "slice" else axes
        steps.append(Step(collective, over, layout, after, shape, op if collective in REDUCING else None))
        layout = after
    return steps
