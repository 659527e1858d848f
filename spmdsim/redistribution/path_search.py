"""The shortest path of collective steps between two layouts on one mesh.

Dijkstra over the states of :mod:`~spmdsim.redistribution.transitions`, each step priced by the machine on what it really
moves. A bound (what the direct exchange costs) ends the search early, and states that need more memory than the
larger of source and target are never entered, so it stays within a fraction of a millisecond.
"""

from __future__ import annotations

import heapq
import math
from typing import NamedTuple

from spmdsim.core import Layout
from spmdsim.core.step import Step, reduction_elements
from spmdsim.cost.closed_forms import most_received
from spmdsim.redistribution.price import Prices
from spmdsim.redistribution.transitions import Splits, Target, Transition

#: States a search may settle; the greedy remainder of a huge search would not pay.
MOST_STATES = 2000
#: What a step costs besides its modelled time: equal times are decided by fewer steps.
STEP_PENALTY = 1e-15


class PathState:
    """A state and the cheapest path to it that is known so far.

    Attributes:
        state: where the path ends.
        held: elements of its largest piece.
        shape: shape of that piece.
        seconds: what the moves take, :data:`STEP_PENALTY` included.
        settled: whether no cheaper path can come.
    """

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
    """Find the cheapest collective steps from ``src`` to ``dst``.

    Args:
        src: the layout before.
        dst: the layout after, on the same mesh; what it keeps pending is pending in ``src`` too.
        shape: global shape.
        itemsize: bytes per element.
        prices: what collectives take on the layouts' mesh.
        limit: the most elements a rank may hold in between.
        bound: paths that cost this many seconds or more are of no use.
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
        return int(most_received(collective, members, held))
    return held - math.prod(map(min, here.shape, there.shape))


def steps_of(
    path: PathState, src: Layout, shape: tuple[int, ...], kept: tuple[tuple[str, str], ...]
) -> list[Step]:
    """The steps of a path as values.

    Args:
        path: the path.
        src: the layout it starts from.
        shape: global shape.
        kept: the axes that stay pending, with their reduction.
    """
    steps, layout, op = [], src, src.reduce_op
    for move in path.moves:
        partial = [(axis, str(op)) for axis in move.state.partial]
        after = Layout(src.mesh, move.state.dims, (*partial, *kept))
        reduces = move.collective in ("all_reduce", "reduce_scatter")
        axes = () if move.collective == "slice" else move.axes
        steps.append(Step(move.collective, axes, layout, after, shape, op if reduces else None))
        layout = after
    return steps
