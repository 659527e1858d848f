"""The shortest path of collective steps between two layouts on one mesh.

Dijkstra over the states of :mod:`~spmdsim.redistribution.moves`, each step priced by the machine on what it really
moves. A bound (what the direct exchange costs) ends the search early, and states that need more memory than the
larger of source and target are never entered, so it stays within a fraction of a millisecond.
"""

from __future__ import annotations

import heapq
import math
from itertools import count
from typing import NamedTuple

from spmdsim.layout import Layout
from spmdsim.redistribution.moves import Move, State, Target
from spmdsim.redistribution.price import Prices
from spmdsim.redistribution.step import Step

#: States a search may settle; the greedy remainder of a huge search would not pay.
MOST_STATES = 2000
#: What a step costs besides its modelled time: equal times are decided by fewer steps.
STEP_PENALTY = 1e-15


#: Per state the state before it and the move between them.
Back = dict[State, tuple[State, Move]]


class Found(NamedTuple):
    """Where a path of moves ends and its estimated seconds.

    Attributes:
        seconds: what the moves take, :data:`STEP_PENALTY` included.
        state: where they end.
        back: how each state was reached.
    """

    seconds: float
    state: State
    back: Back

    @property
    def moves(self) -> tuple[Move, ...]:
        """The moves of the path."""
        moves: list[Move] = []
        at = self.state
        while at in self.back:
            at, move = self.back[at]
            moves.append(move)
        return tuple(reversed(moves))


class Paths(NamedTuple):
    """What a search found: the path to the target, if any, and the paths to states with nothing to reduce."""

    target: Found | None
    reduced: tuple[Found, ...]


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
    settled: set[State] = set()
    best: dict[State, float] = {goal.start: 0.0}
    back: Back = {}
    ticket = count()
    queue: list[tuple[float, int, State]] = [(0.0, next(ticket), goal.start)]
    reduced: list[State] = []
    while queue and len(settled) < MOST_STATES:
        seconds, _, state = heapq.heappop(queue)
        if state in settled:
            continue
        settled.add(state)
        if state == goal.goal:
            break
        _, here = goal.local(state.dims)
        for move in goal.moves(state):
            collective, axes, after = move
            held, there = goal.local(after.dims)
            if held > limit:
                continue
            members = goal.members(axes)
            nbytes = _moved(collective, members, here, there, held) * itemsize
            total = seconds + prices.seconds(collective, members, nbytes, axes) + STEP_PENALTY
            if total < bound and total < best.get(after, float("inf")):
                if state.pending and not after.pending and after not in best:
                    reduced.append(after)
                best[after] = total
                back[after] = (state, move)
                heapq.heappush(queue, (total, next(ticket), after))
    target = Found(best[goal.goal], goal.goal, back) if goal.goal in settled else None
    return Paths(target, tuple([Found(best[state], state, back) for state in reduced]))


def _moved(collective: str, members: int, here: list[int], there: list[int], held: int) -> int:
    """Elements that the first rank receives: the busiest one's, or where pieces are uneven a little less."""
    if collective == "slice":
        return 0
    if collective == "reduce_scatter":
        return (members - 1) * held
    if collective == "all_reduce":
        return (members - 2) * -(-held // members) + held
    return held - math.prod(map(min, here, there))


def steps_of(
    found: Found, src: Layout, shape: tuple[int, ...], kept: tuple[tuple[str, str], ...]
) -> list[Step]:
    """The steps of a path as values.

    Args:
        found: the path.
        src: the layout it starts from.
        shape: global shape.
        kept: the axes that stay pending, with their reduction.
    """
    steps, layout, op = [], src, src.reduce_op
    for move in found.moves:
        pending = [(axis, str(op)) for axis in move.state.pending]
        after = Layout(src.mesh, move.state.dims, (*pending, *kept))
        reduces = move.collective in ("all_reduce", "reduce_scatter")
        axes = () if move.collective == "slice" else move.axes
        steps.append(Step(move.collective, axes, layout, after, shape, op if reduces else None))
        layout = after
    return steps
