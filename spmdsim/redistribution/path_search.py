"""The collective steps that lead from a state of the values towards a target.

A state is a layout in its barest form: per dim the axes, and the axes still to be reduced. Splits are nested, so
only the last axes of a dim can be gathered or moved away, and axes can only be appended at the end. Moves are
directed: an axis is placed where the target wants it, right after the axes that the target has before it, or given
up. What that cannot reach (swapped axes, other cut points) is what the direct exchange is for.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import NamedTuple

from spmdsim.core import Layout
from spmdsim.core.step import Step, reduction_elements
from spmdsim.redistribution.exchange.grid import common_axes
from spmdsim.redistribution.lower_bound import kept_axes
from spmdsim.redistribution.price import Prices

Dims = tuple[tuple[str, ...], ...]


class Splits(NamedTuple):
    """Per dim the axes that split it, major first, and the axes whose values have to be reduced."""

    dims: Dims
    partial: tuple[str, ...]


class Transition(NamedTuple):
    """A collective over axes that leads to a state."""

    collective: str
    axes: tuple[str, ...]
    state: Splits


class Target:
    """Where the moves lead: the target's dims, and what the search may do on the way.

    The target is on the source's mesh, with no axis pending that is not pending there.
    """

    def __init__(self, src: Layout, dst: Layout, shape: tuple[int, ...]) -> None:
        self.mesh, self.shape = src.mesh, shape
        kept = kept_axes(src, dst)
        self.dims = dst.dims
        self.start = Splits(src.dims, tuple([axis for axis in src.partial_axes if axis not in kept]))
        self.goal = Splits(dst.dims, ())
        self.movable = {*src.mesh.axes} - {*kept}
        self.wanted = {axis for entry in dst.dims for axis in entry}
        self._local: dict[Dims, tuple[int, list[int]]] = {}
        self._members: dict[tuple[str, ...], int] = {}

    # -- sizes --------------------------------------------------------------------------------------

    def local(self, dims: Dims) -> tuple[int, list[int]]:
        """Elements and shape of the largest piece: the first rank's, balanced splits being what they are."""
        local = self._local.get(dims)
        if local is None:
            members = self.members
            shape = [-(-size // members(entry)) for size, entry in zip(self.shape, dims)]
            local = self._local[dims] = (math.prod(shape), shape)
        return local

    def members(self, axes: tuple[str, ...]) -> int:
        """Ranks of a group along some axes."""
        members = self._members.get(axes)
        if members is None:
            size_of = self.mesh.size_of
            members = self._members[axes] = math.prod([size_of[axis] for axis in axes])
        return members

    def moves(self, state: Splits) -> list[Transition]:
        """The moves that make sense from a state."""
        sliced = self._slice(state)
        if sliced is not None:
            # It costs nothing and shrinks everything that follows; a reduce_scatter takes what it needs by itself.
            return [sliced, *self.spreads(state)] if state.partial else [sliced]
        return self._reductions(state) if state.partial else self._placements(state)

    # -- slice --------------------------------------------------------------------------------------

    def _slice(self, state: Splits) -> Transition | None:
        if state.dims == self.dims:
            return None
        free = self.movable.difference(state.partial, *state.dims)
        if free.isdisjoint(self.wanted):
            return None
        runs = [next_run(entry, target, free) for entry, target in zip(state.dims, self.dims)]
        if not any(runs):
            return None
        dims = tuple([entry + run for entry, run in zip(state.dims, runs)])
        return Transition("slice", tuple([axis for run in runs for axis in run]), Splits(dims, state.partial))

    # -- reductions ---------------------------------------------------------------------------------

    def _reductions(self, state: Splits) -> list[Transition]:
        dims, partial = state
        axes = {*partial}
        runs = [next_run(entry, target, axes) for entry, target in zip(dims, self.dims)]
        fitting = [dim for dim, run in enumerate(runs) if run]
        transitions = []
        if len(fitting) > 1:
            every = tuple([axis for run in runs for axis in run])
            after = tuple([entry + run for entry, run in zip(dims, runs)])
            transitions.append(Transition("reduce_scatter", every, Splits(after, _without(partial, every))))
        transitions += [_scattered(state, dim, runs[dim]) for dim in fitting]
        lost = tuple([axis for axis in partial if axis not in self.wanted])
        if lost and len(lost) < len(partial):
            transitions.append(Transition("all_reduce", lost, Splits(dims, _without(partial, lost))))
        transitions.append(Transition("all_reduce", partial, Splits(dims, ())))
        anywhere = self._equal_pieces([entry + partial for entry in dims])
        transitions += [_scattered(state, dim, partial) for dim in anywhere if runs[dim] != partial]
        return transitions + self.spreads(state)

    def spreads(self, state: Splits) -> list[Transition]:
        """All reductions at once, into pieces as small as can be: axes that only copy split, too, at no cost.

        The target's next axes come first, the others after them in one dim, for the time being.
        """
        dims, partial = state
        free = self.movable.difference(*dims)
        runs = [next_run(entry, target, free) for entry, target in zip(dims, self.dims)]
        placed = [entry + run for entry, run in zip(dims, runs)]
        rest = tuple([axis for axis in self.mesh.axes if axis in free.difference(*runs)])
        transitions = []
        for axes in dict.fromkeys((rest, tuple([axis for axis in rest if axis in partial]))):
            for dim in self._equal_pieces([entry + axes for entry in placed]):
                after = tuple([e + axes if d == dim else e for d, e in enumerate(placed)])
                transitions.append(Transition("reduce_scatter", partial, Splits(after, ())))
        return transitions

    def _equal_pieces(self, dims: Sequence[tuple[str, ...]]) -> list[int]:
        """The dims that axes would cut into equal pieces; any, if they so cut none: elsewhere pieces are larger."""
        equal = [d for d, entry in enumerate(dims) if self.shape[d] % self.members(entry) == 0]
        return equal or [*range(len(dims))]

    # -- placements ---------------------------------------------------------------------------------

    def _placements(self, state: Splits) -> list[Transition]:
        dims = state.dims
        beyond: list[tuple[int, tuple[str, ...]]] = []  # per dim the axes that the target does not have there
        ahead: list[tuple[int, tuple[str, ...]]] = []  # or those that it has besides
        for dim, (entry, target) in enumerate(zip(dims, self.dims)):
            common = common_axes(entry, target)
            if common < len(entry):
                beyond.append((dim, entry[common:]))
            elif common < len(target):
                ahead.append((dim, target[common:]))
        transitions = []
        for dim, extra in beyond if ahead else ():
            for count in range(1, len(extra) + 1):
                axes = {*extra[-count:]}
                for other, run in ahead:
                    if {*run[:count]} == axes:
                        after = _with(dims, dim, dims[dim][:-count])
                        after = _with(after, other, dims[other] + run[:count])
                        transitions.append(Transition("all_to_all", run[:count], Splits(after, ())))
        for dim, extra in beyond:
            for count in range(len(extra), 0, -1):
                after = _with(dims, dim, dims[dim][:-count])
                transitions.append(Transition("all_gather", extra[-count:], Splits(after, ())))
        if len(beyond) > 1:
            after = dims
            for dim, extra in beyond:
                after = _with(after, dim, dims[dim][: -len(extra)])
            every = tuple([axis for _, extra in beyond for axis in extra])
            transitions.append(Transition("all_gather", every, Splits(after, ())))
        return transitions


def _scattered(state: Splits, dim: int, axes: tuple[str, ...]) -> Transition:
    after = _with(state.dims, dim, state.dims[dim] + axes)
    return Transition("reduce_scatter", axes, Splits(after, _without(state.partial, axes)))


def _with(dims: Dims, dim: int, entry: tuple[str, ...]) -> Dims:
    """The dims with another entry."""
    return (*dims[:dim], entry, *dims[dim + 1 :])


def _without(axes: tuple[str, ...], gone: tuple[str, ...]) -> tuple[str, ...]:
    return tuple([axis for axis in axes if axis not in gone])


def next_run(entry: tuple[str, ...], target: tuple[str, ...], allowed: set[str]) -> tuple[str, ...]:
    """The target's next axes on a dim that are all allowed, if what is there is the target's beginning."""
    if len(target) <= len(entry) or target[: len(entry)] != entry:
        return ()
    stop = len(entry)
    while stop < len(target) and target[stop] in allowed:
        stop += 1
    return target[len(entry) : stop]


#: States a search may settle; the greedy remainder of a huge search would not pay.
MOST_STATES = 2000
#: What a step costs besides its modelled time: equal times are decided by fewer steps.
STEP_PENALTY = 1e-15


class PathState:
    """A state and the cheapest path to it that is known so far; settled if no cheaper one can come."""

    __slots__ = ("before", "held", "move", "seconds", "settled", "shape", "state")

    def __init__(self, state: Splits, held: int, shape: list[int], seconds: float) -> None:
        self.state, self.held, self.shape, self.seconds = state, held, shape, seconds
        self.settled = False
        self.before: PathState | None = None
        self.move: Transition | None = None

    @property
    def moves(self) -> list[Transition]:
        """The moves of the path."""
        if self.before is None or self.move is None:
            return []
        return [*self.before.moves, self.move]

    @property
    def copied(self) -> int:
        """Elements that the slices on the path copy; the search itself takes them for free."""
        if self.before is None or self.move is None:
            return 0
        return self.before.copied + (self.held if self.move.collective == "slice" else 0)


class Paths(NamedTuple):
    """What a search found: the path to the target, if any, and the paths to states with nothing to reduce."""

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
    """Find the cheapest collective steps to a layout on the same mesh; what it keeps pending is pending in ``src`` too.

    No rank may hold more than ``limit`` elements in between; paths that cost ``bound`` seconds or more are of no use.
    """
    goal = Target(src, dst, shape)
    start = PathState(goal.start, *goal.local(goal.start.dims), 0.0)
    paths = {goal.start: start}
    queue = [(0.0, 0, start)]
    reduced: list[PathState] = []
    states = pushed = 0
    while queue and states < MOST_STATES:
        seconds, _, here = heapq.heappop(queue)
        if here.settled:
            continue
        here.settled = True
        states += 1
        if here.state == goal.goal:
            return Paths(here, tuple(reduced))
        for move in goal.moves(here.state):
            collective, axes, state = move
            there = paths.get(state)
            if there is None:
                there = paths[state] = PathState(state, *goal.local(state.dims), math.inf)
            if there.settled or there.held > limit:
                continue
            members = goal.members(axes)
            nbytes = _moved(collective, members, here, there) * itemsize
            total = seconds + prices.seconds(collective, members, nbytes, axes) + STEP_PENALTY
            if total < bound and total < there.seconds:
                if here.state.partial and not state.partial and there.seconds == math.inf:
                    reduced.append(there)
                there.seconds, there.before, there.move = total, here, move
                pushed += 1
                heapq.heappush(queue, (total, pushed, there))
    return Paths(None, tuple(reduced))


def _moved(collective: str, members: int, here: PathState, there: PathState) -> int:
    """Elements that the busiest rank receives, or where pieces are uneven a little less, but never none for some."""
    held = there.held
    if collective == "slice":
        return 0
    if collective in ("all_reduce", "reduce_scatter"):
        return int(reduction_elements(collective, members, held))
    if collective == "all_gather":
        return held - held // members
    return held - math.prod(map(min, here.shape, there.shape))


def one_step(
    src: Layout, dst: Layout, shape: tuple[int, ...], kept: tuple[tuple[str, str], ...]
) -> Step | None:
    """The step that leads to a layout at once; None if it takes several."""
    goal = Target(src, dst, shape)
    there = [move for move in goal.moves(goal.start) if move.state == goal.goal]
    return steps_of(there[:1], src, shape, kept)[0] if there else None


def steps_of(
    moves: Sequence[Transition], src: Layout, shape: tuple[int, ...], kept: tuple[tuple[str, str], ...]
) -> list[Step]:
    """The steps of a path as values; some axes stay pending, with their reduction."""
    steps, layout, op = [], src, src.reduce_op
    for move in moves:
        partial = [(axis, str(op)) for axis in move.state.partial]
        after = Layout(src.mesh, move.state.dims, (*partial, *kept))
        reduces = move.collective in ("all_reduce", "reduce_scatter")
        axes = () if move.collective == "slice" else move.axes
        steps.append(Step(move.collective, axes, layout, after, shape, op if reduces else None))
        layout = after
    return steps
