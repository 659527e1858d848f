"""The exact optimum by dynamic programming: variables are removed one by one.

Removing a variable replaces all prices it takes part in by one table over its neighbours: the least price for each
of their combinations. On a chain or tree the tables have one dimension, and this is the well-known dynamic
programme; a residual connection costs one dimension more. MindSpore's reductions (operator, edge, merge,
contract, triangle and star elimination) are special cases.

Hubs pair with nearly everything, so removing one of them would join all others in one table. They are decided by
branch and bound instead: as long as one is open, each of its neighbours takes the least price over its states,
which bounds the rest from below.

Before that, states that can never be part of an optimum are crossed out (Goldstein's criterion, 1994: another
state of the same variable is at least as good whatever the neighbours choose).

A given solution is improved (:func:`improve`) by deciding windows of neighbouring variables anew while the others stay:
no round makes it worse, and a window that holds a whole layer finds what single changes cannot.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from copy import copy
from typing import NamedTuple

import numpy as np

from spmdsim.auto_parallel.solvers.choice_problem import (
    IMPOSSIBLE,
    ChoiceProblem,
    Neighbours,
    SharedPrice,
    Solution,
)
from spmdsim.errors import SpmdError

#: The largest table that is built: 8 bytes per entry.
LARGEST_TABLE = 20_000_000
#: Variables that a local search decides anew together, and how often it goes through all of them.
WINDOW, ROUNDS = 64, 3
#: So many differences of what is shared are looked at to cross out states of a variable.
LARGEST_COMPARED = 20_000_000


class TooWideError(SpmdError):
    """The graph is too entangled for tables of a reasonable size."""


def eliminate(
    problem: ChoiceProblem, kept: Sequence[np.ndarray] | None = None, largest: int = LARGEST_TABLE
) -> Solution:
    """Return the cheapest assignment; ``kept`` is what :func:`reduce_domains` returns of the problem, if it is known."""
    kept = reduce_domains(problem) if kept is None else kept
    small = restrict(problem, kept)
    states = _Branches(small, largest).run() if small.hubs else _Elimination(small, largest).run()
    chosen = [int(kept[i][s]) for i, s in enumerate(states)]
    return Solution.of(problem, chosen, "elimination", True)


def restrict(problem: ChoiceProblem, kept: Sequence[np.ndarray]) -> ChoiceProblem:
    """The problem with only some states of each variable."""
    return ChoiceProblem(
        [row[k] for row, k in zip(problem.seconds, kept)],
        {(i, j): m[np.ix_(kept[i], kept[j])] for (i, j), m in problem.pairs.items()},
        [row[k] for row, k in zip(problem.memory, kept)],
        {(i, j): m[np.ix_(kept[i], kept[j])] for (i, j), m in problem.memory_pairs.items()},
        problem.hubs,
        [one.restrict(kept) for one in problem.shared],
    )


def reduce_domains(problem: ChoiceProblem, rounds: int = 4, *, memory: bool = False) -> list[np.ndarray]:
    """The states that may be part of an optimum, per variable; of equally good ones the first is kept.

    With ``memory`` a state must be beaten in bytes, too: then what is left holds the optimum for every limit.
    """
    kept = [np.arange(n) for n in problem.sizes]
    measures = [(problem.seconds, problem.neighbours())]
    if memory:
        bytes_of = ChoiceProblem(problem.memory, problem.memory_pairs)
        measures.append((problem.memory, bytes_of.neighbours()))
    together: dict[int, list[SharedPrice]] = {}
    for one in problem.shared:
        for v in one.around:
            together.setdefault(v, []).append(one)
    waiting = set(range(len(problem)))
    for _ in range(rounds):
        changed: set[int] = set()
        for i in sorted(waiting):
            before = len(kept[i])
            more = [_seen_from(one.restrict(kept), i) for one in together.get(i, ())]
            kept[i] = _undominated([(rows[i], around[i]) for rows, around in measures], kept, i, more)
            if len(kept[i]) < before:
                changed.update(j for _, around in measures for j, _ in around[i])
                changed.update(j for one in together.get(i, ()) for j in one.around if j != i)
        waiting = changed
        if not waiting:
            break
    return kept


def _seen_from(shared: SharedPrice, i: int) -> np.ndarray:
    """``[state of i, what the others choose]``; where that is too much to look at, prices that differ at most as much."""
    n, combinations = len(shared.labels[shared.variables.index(i)]), math.prod(shared.sizes)
    if n * combinations > LARGEST_COMPARED:
        most = float(shared.prices.max(initial=0.0)) * (len(shared.variables) - 1)
        return most * (1.0 - np.eye(n))
    return np.moveaxis(shared.table(), shared.around.index(i), 0).reshape(n, -1)


def _undominated(
    measures: list[tuple[np.ndarray, Neighbours]], kept: list[np.ndarray], i: int, shared: list[np.ndarray]
) -> np.ndarray:
    """The states of a variable that no other one beats; what is ``shared`` belongs to the first measure."""
    own = kept[i]
    if len(own) == 1:
        return own
    # beaten[a, b]: b is at least as good as a, whatever the neighbours choose; strictly: in something better.
    beaten, strictly = np.ones((len(own),) * 2, bool), np.zeros((len(own),) * 2, bool)
    for k, (prices, neighbours) in enumerate(measures):
        parts = [(kept[j], part[own]) for j, part in neighbours]
        parts += [(np.arange(part.shape[1]), part) for part in shared if k == 0]
        worse, slack = _worse(prices[own], parts)
        beaten &= worse >= -slack
        strictly |= worse > slack
    np.fill_diagonal(beaten, False)
    alive = np.ones(len(own), bool)
    for a in reversed(range(len(own))):
        rivals = beaten[a] & alive
        if (rivals & strictly[a]).any() or rivals[:a].any():
            alive[a] = False
    return own[alive]


def _worse(row: np.ndarray, neighbours: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, float]:
    """``[a, b]``: at least so much dearer is state a than b; and what counts as nothing."""
    worse = row[:, None] - row[None, :]
    scale = float(np.abs(row[row < IMPOSSIBLE / 2]).max(initial=0.0))
    for states, prices in neighbours:
        part = prices[:, states]
        worse += _least_difference(part)
        scale = max(scale, float(np.abs(part[part < IMPOSSIBLE / 2]).max(initial=0.0)))
    return worse, 1e-12 * scale


def _least_difference(part: np.ndarray) -> np.ndarray:
    """``min over x of part[a, x] - part[b, x]`` for all a and b, in pieces that fit the cache."""
    (n, m), columns = part.shape, np.ascontiguousarray(part.T)  # numpy is slow along a short last axis
    if n * n * m <= 2_000_000:
        array: np.ndarray = (columns[:, :, None] - columns[:, None, :]).min(axis=0)
        return array
    return np.stack([(columns[:, a : a + 1] - columns).min(axis=0) for a in range(n)])


class _Table(NamedTuple):
    variables: tuple[int, ...]
    prices: np.ndarray


class _Elimination:
    """One run; the tables of removed variables are kept to read the optimum back."""

    def __init__(self, problem: ChoiceProblem, largest: int) -> None:
        self.sizes = problem.sizes
        self.largest = largest
        self.tables: dict[int, _Table] = {}
        self.number = 0
        #: Variables that are removed, with the tables they were in.
        self.order: list[tuple[int, list[_Table]]] = []
        self.of: list[set[int]] = [set() for _ in self.sizes]
        # A variable with one state is decided: its pairs are prices of their other variables.
        rows = [row.copy() for row in problem.seconds]
        for (i, j), m in problem.pairs.items():
            if self.sizes[i] == 1:
                rows[j] += m[0]
            elif self.sizes[j] == 1:
                rows[i] += m[:, 0]
            else:
                self._add((i, j), m)
        for i, row in enumerate(rows):
            self._add((i,), row)
        for one in problem.shared:
            if math.prod(one.sizes) > largest:
                raise _too_wide(math.prod(one.sizes))
            open_ones = tuple(v for v in one.around if self.sizes[v] > 1)
            self._add(open_ones, one.table().reshape([self.sizes[v] for v in open_ones]))

    def copy(self) -> _Elimination:
        """The same state, which goes on alone."""
        other = copy(self)
        other.tables, other.of, other.order = dict(self.tables), [set(one) for one in self.of], [*self.order]
        return other

    def _add(self, variables: tuple[int, ...], prices: np.ndarray) -> None:
        self.tables[self.number] = _Table(variables, prices)
        for v in variables:
            self.of[v].add(self.number)
        self.number += 1

    def add_row(self, variable: int, prices: np.ndarray) -> None:
        """More prices of one variable's states."""
        self._add((variable,), prices)

    def simplify(self, candidates: Sequence[int]) -> None:
        """Remove those whose neighbours have a table together already: nothing gets wider by that."""
        for v in candidates:
            around = {*self._around(v)}
            if any(around <= {*self.tables[n].variables} for u in around for n in self.of[u] - self.of[v]):
                self._replace(v, self._width(v))

    def run(self) -> list[int]:
        """States of all variables."""
        removed = [False] * len(self.sizes)
        for v, _ in self.order:
            removed[v] = True
        waiting = [(self._width(v), v) for v in range(len(self.sizes)) if not removed[v]]
        heapq.heapify(waiting)
        while waiting:
            width, v = heapq.heappop(waiting)
            if removed[v]:
                continue
            now = self._width(v)
            if now > width:
                heapq.heappush(waiting, (now, v))
                continue
            removed[v] = True
            for u in self._replace(v, now):
                heapq.heappush(waiting, (self._width(u), u))
        states = [0] * len(self.sizes)
        for v, tables in reversed(self.order):
            prices = np.zeros(self.sizes[v])
            for table in tables:
                prices += table.prices[tuple(slice(None) if u == v else states[u] for u in table.variables)]
            states[v] = int(prices.argmin())
        return states

    def _replace(self, v: int, width: int) -> tuple[int, ...]:
        """Remove a variable, and put a table over those around it in its place; returns these."""
        if width > self.largest:
            raise _too_wide(width)
        around = self._around(v)
        numbers = sorted(self.of[v], key=lambda n: self.tables[n].prices.ndim)
        tables = [self.tables.pop(number) for number in numbers]
        self.order.append((v, tables))
        total: np.ndarray = np.zeros((1,) * (1 + len(around)))
        for table in tables:
            # The variable's own axis comes first, because numpy is slow along a short last axis.
            prices = _spread(table, (v, *around))
            has_all = np.broadcast_shapes(total.shape, prices.shape) == total.shape
            total = np.add(total, prices, out=total if has_all else None, order="C")
        for u in around:
            self.of[u].difference_update(numbers)
        if around:
            self._add(around, total.min(axis=0))
        return around

    def _around(self, v: int) -> tuple[int, ...]:
        variables = {u for number in self.of[v] for u in self.tables[number].variables}
        return tuple(sorted(variables - {v}))

    def _width(self, v: int) -> int:
        return self.sizes[v] * math.prod(self.sizes[u] for u in self._around(v))


def _too_wide(width: int) -> TooWideError:
    return TooWideError(
        f"the exact search would need a table of {width:.1e} entries; use fewer mesh axes or the integer programme"
    )


def _spread(table: _Table, axes: tuple[int, ...]) -> np.ndarray:
    """The table's prices with one dimension per variable of ``axes``, of size one where it lacks the variable."""
    order = sorted(range(len(table.variables)), key=lambda k: axes.index(table.variables[k]))
    moved = table.prices.transpose(order)
    present = set(table.variables)
    sizes = iter(moved.shape)
    return moved.reshape([next(sizes) if u in present else 1 for u in axes])


class _Branches:
    """The optimum of a problem with hubs: for each way to decide them that may be best, one elimination."""

    def __init__(self, problem: ChoiceProblem, largest: int) -> None:
        self.problem, self.largest = problem, largest
        self.hubs = problem.hubs
        self.others = [v for v in range(len(problem)) if v not in set(problem.hubs)]
        place = {v: k for k, v in enumerate(self.others)}
        inner = {(i, j): m for (i, j), m in problem.pairs.items() if i in place and j in place}
        self.pairs = {(place[i], place[j]): m for (i, j), m in inner.items()}
        self.shared = [one.numbered(place) for one in problem.shared]
        #: Per hub its neighbours (by place among the others) with the pair's prices, [own state, hub's state].
        neighbours = problem.neighbours()
        self.around = {hub: [(place[v], prices.T) for v, prices in neighbours[hub]] for hub in self.hubs}
        rows = [problem.seconds[v] for v in self.others]
        self.start = _Elimination(ChoiceProblem(rows, self.pairs, shared=self.shared), largest)
        touched = {v for around in self.around.values() for v, _ in around}
        # What no hub touches is the same in all branches.
        self.start.simplify([v for v in range(len(self.others)) if v not in touched])

    def run(self) -> list[int]:
        """States of all variables."""
        best: tuple[float, list[int]] | None = None
        waiting: list[dict[int, int]] = [{}]
        while waiting:
            decided = waiting.pop()
            bound, states = self._relaxed(decided)
            if best is not None and bound >= best[0] * (1 - 1e-12):
                continue
            slack, hub = self._finish(states, decided)
            price = self.problem.price(states)
            if best is None or price < best[0]:
                best = (price, states)
            if hub is not None and slack > 1e-12 * abs(price):
                order = sorted(range(self.problem.sizes[hub]), key=lambda s: s == states[hub])
                waiting += [{**decided, hub: state} for state in order]
        assert best is not None
        return best[1]

    def _relaxed(self, decided: dict[int, int]) -> tuple[float, list[int]]:
        """A lower bound with some hubs decided, and the others' states that attain it (hubs are left at 0)."""
        rows, run = [self.problem.seconds[v].copy() for v in self.others], self.start.copy()
        fixed = 0.0
        for hub in self.hubs:
            state, own = decided.get(hub), self.problem.seconds[hub]
            fixed += float(own.min() if state is None else own[state])
            for v, prices in self.around[hub]:
                own = prices.min(axis=1) if state is None else prices[:, state]
                rows[v] += own
                run.add_row(v, own)
        small = ChoiceProblem(rows, self.pairs, shared=self.shared)
        chosen = run.run()
        states = [0] * len(self.problem)
        for v, state in zip(self.others, chosen):
            states[v] = state
        return fixed + small.price(chosen), states

    def _finish(self, states: list[int], decided: dict[int, int]) -> tuple[float, int | None]:
        """Put every hub in its best state; the open one that is farthest from its bound, and how far."""
        worst: tuple[float, int | None] = (0.0, None)
        for hub in self.hubs:
            total, least = self.problem.seconds[hub].copy(), float(self.problem.seconds[hub].min())
            for v, prices in self.around[hub]:
                row = prices[states[self.others[v]]]
                total += row
                least += float(row.min())
            states[hub] = decided.get(hub, int(total.argmin()))
            if hub not in decided:
                worst = max(worst, (float(total.min()) - least, hub), key=lambda pair: pair[0])
        return worst


def improve(
    problem: ChoiceProblem, states: Sequence[int], kept: Sequence[np.ndarray] | None = None
) -> Solution:
    """Return a solution that is at least as good as given states.

    ``kept`` is what :func:`reduce_domains` returns of the problem, if it is known. States that no optimum needs are left
    out: windows are small then.
    """
    kept = reduce_domains(problem) if kept is None else kept
    small = restrict(problem, kept)
    start = list(states)
    for v, allowed in enumerate(kept):
        if start[v] not in allowed:
            prices = [problem.price_of_states(start, v, int(s)) for s in allowed]
            start[v] = int(allowed[int(np.argmin(prices))])
    inside = [int(np.flatnonzero(allowed == s)[0]) for allowed, s in zip(kept, start)]
    inside = _rounds(small, inside)
    states_now = [int(kept[v][s]) for v, s in enumerate(inside)]
    best = states_now if problem.price(states_now) < problem.price(states) else list(states)
    return Solution.of(problem, best, "local search", False)


def _rounds(problem: ChoiceProblem, states: list[int]) -> list[int]:
    """Decide all windows anew until nothing improves."""
    now, price = states, problem.price(states)
    around, hubs = problem.neighbours(), set(problem.hubs)
    for _ in range(ROUNDS):
        before = price
        others = [v for v in range(len(problem)) if v not in hubs]
        everything = len(others) <= WINDOW
        if everything:
            now = _decide(problem, around, now, others)
        for centre in () if everything else range(0, len(problem), WINDOW // 2):
            if centre not in hubs:
                now = _decide(problem, around, now, _window(around, centre, hubs))
        price = problem.price(now)
        if everything or price >= before * (1 - 1e-12):
            break
    return now


def _window(around: list[Neighbours], centre: int, hubs: set[int]) -> list[int]:
    """The variables nearest to one, by number of pairs in between; not by way of hubs, which join everything."""
    window, seen = [centre], {centre}
    for v in window:
        for u, _ in around[v]:
            if u not in seen and u not in hubs and len(window) < WINDOW:
                seen.add(u)
                window.append(u)
    return sorted(window)


def _decide(problem: ChoiceProblem, around: list[Neighbours], now: list[int], chosen: list[int]) -> list[int]:
    """Decide the chosen variables anew, and all hubs with them."""
    every = sorted({*chosen, *problem.hubs})
    place = {v: k for k, v in enumerate(every)}
    rows, hubs = [problem.seconds[v].copy() for v in every], [place[hub] for hub in problem.hubs]
    small = ChoiceProblem(rows, hubs=hubs)
    for v in every:
        for u, prices in around[v]:
            if u not in place:
                small.seconds[place[v]] = small.seconds[place[v]] + prices[:, now[u]]
            elif v < u:
                small.add_pair(place[v], place[u], prices)
    _add_shared(problem, small, place, now)
    try:
        answer = eliminate(small)
    except TooWideError:
        for half in (chosen[: len(chosen) // 2], chosen[len(chosen) // 2 :]):
            now = _decide(problem, around, now, half)
        return now
    states_now = list(now)
    for v, state in zip(every, answer.states):
        states_now[v] = state
    return states_now if problem.price_around(states_now, every) < problem.price_around(now, every) else now


def _add_shared(problem: ChoiceProblem, small: ChoiceProblem, place: dict[int, int], now: list[int]) -> None:
    """What the variables of a window share, with others as they are now, as variables of one state behind the window's."""
    place, open_ones = dict(place), {*place}
    for one in problem.shared:
        if open_ones.isdisjoint(one.variables):
            continue
        for v in one.around:
            if v not in place:
                place[v] = small.add_variable(np.zeros(1))
        kept = {v: np.arange(problem.sizes[v]) if v in open_ones else np.array([now[v]]) for v in one.around}
        small.shared.append(one.restrict(kept).numbered(place))
