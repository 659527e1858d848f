"""The exact optimum by dynamic programming: variables are removed one by one.

Removing a variable replaces all its prices by one table over its neighbours: the least price for each of their
combinations. On a chain or tree the tables have one dimension, and this is the well-known dynamic program; a residual
connection costs one dimension more. MindSpore's reductions (operator, edge, merge, contract, triangle and star
elimination) are special cases.

Hubs pair with nearly all variables, so removing one would join all others in one table. They are decided by branch
and bound instead. While a hub is undecided, each of its neighbours takes the least price over the hub's states, which
is a lower bound.

Before that, states that cannot be part of an optimum are removed (Goldstein's criterion, 1994: another state of the
variable is at least as good whatever the neighbours choose).

A given solution is improved (:func:`improve`) by deciding windows of neighbouring variables again while the others
stay. No round makes it worse. A window with all variables of a layer finds improvements that single changes do not.
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

#: Most entries of a table; an entry has 8 bytes.
LARGEST_TABLE = 20_000_000
#: Number of variables that a local search decides together, and number of rounds through all variables.
WINDOW, ROUNDS = 64, 3
#: Most differences of a shared price that are computed to compare the states of a variable.
LARGEST_COMPARED = 20_000_000


class TooWideError(SpmdError):
    """The elimination needs a table of more than the allowed number of entries."""


def eliminate(
    problem: ChoiceProblem, remaining: Sequence[np.ndarray] | None = None, largest: int = LARGEST_TABLE
) -> Solution:
    """Return the cheapest assignment of a problem, which is proven optimal.

    If the problem has hubs, the function branches over their states (`_Branches`). Otherwise it eliminates one
    variable after the other.

    Args:
        problem: the problem.
        remaining: for each variable, the states to choose from, as :func:`reduce_domains` returns them; None
            calls this function.
        largest: the most entries that a table may have; an entry has 8 bytes.

    Raises:
        TooWideError: If a larger table is needed.
    """
    remaining = reduce_domains(problem) if remaining is None else remaining
    small = restrict(problem, remaining)
    states = _Branches(small, largest).run() if small.hubs else _Elimination(small, largest).run()
    chosen = [int(remaining[i][s]) for i, s in enumerate(states)]
    return Solution.of(problem, chosen, "elimination", True)


def restrict(problem: ChoiceProblem, remaining: Sequence[np.ndarray]) -> ChoiceProblem:
    """Return the problem with only the states ``remaining[variable]`` of each variable.

    States are numbered anew: with ``remaining[v] = [0, 3]``, the old state 3 of variable v is the new state 1.

    Args:
        problem: the problem.
        remaining: for each variable, the numbers of the states that stay.
    """
    return ChoiceProblem(
        [row[k] for row, k in zip(problem.seconds, remaining)],
        {(i, j): m[np.ix_(remaining[i], remaining[j])] for (i, j), m in problem.pairs.items()},
        [row[k] for row, k in zip(problem.memory, remaining)],
        {(i, j): m[np.ix_(remaining[i], remaining[j])] for (i, j), m in problem.memory_pairs.items()},
        problem.hubs,
        [shared.restrict(remaining) for shared in problem.shared],
    )


def reduce_domains(problem: ChoiceProblem, rounds: int = 4, *, memory: bool = False) -> list[np.ndarray]:
    """Return, for each variable, the states that may be part of an optimum, as ascending arrays.

    A state is left out if another state of its variable is at least as good, whatever the other variables choose. For
    example, with the prices [1, 5] and pair prices between 0 and 2, the second state is left out: it costs at least
    5, and the first one at most 3. Prices within a relative 1e-12 count as equal. Of equally good states the first
    one stays, so at least one state always stays.

    The first round checks all variables. Each further one checks variables that have a pair price or a shared price
    with a variable that lost a state.

    Args:
        problem: the problem.
        rounds: the largest number of rounds; fewer if no state is left out any more.
        memory: True to also keep states that are better in bytes. The remaining states then contain the optimum for
            every limit.
    """
    remaining = [np.arange(n) for n in problem.sizes]
    measures = [(problem.seconds, problem.neighbours())]
    if memory:
        bytes_of = ChoiceProblem(problem.memory, problem.memory_pairs)
        measures.append((problem.memory, bytes_of.neighbours()))
    shared_of: dict[int, list[SharedPrice]] = {}
    for shared in problem.shared:
        for v in shared.around:
            shared_of.setdefault(v, []).append(shared)
    variables_to_check = set(range(len(problem)))
    for _ in range(rounds):
        changed: set[int] = set()
        for i in sorted(variables_to_check):
            count_before = len(remaining[i])
            shared_rows = [_list_rows(shared.restrict(remaining), i) for shared in shared_of.get(i, ())]
            remaining[i] = _unbeaten_states(
                [(rows[i], neighbours[i]) for rows, neighbours in measures], remaining, i, shared_rows
            )
            if len(remaining[i]) < count_before:
                # With fewer states of this variable, states of its neighbours may be beaten in the next round.
                changed.update(j for _, neighbours in measures for j, _ in neighbours[i])
                changed.update(j for shared in shared_of.get(i, ()) for j in shared.around if j != i)
        variables_to_check = changed
        if not variables_to_check:
            break
    return remaining


def _list_rows(shared: SharedPrice, i: int) -> np.ndarray:
    """Return a shared price as an array ``[state of i, combination of the others' states]``.

    The caller compares rows: it removes a state of ``i`` if another state is at least as good in every column.

    A table of more than :data:`LARGEST_COMPARED` (20 million) entries is too large. Then an array ``[state of i,
    state of i]`` replaces it, with 0 on the diagonal and elsewhere the highest possible price, such as ``[[0, 6],
    [6, 0]]``. So the caller removes state 0 only if state 1 saves 6 seconds in other prices. It removes fewer
    states than with the table, but never one that it needs for an optimum.
    """
    n, combinations = len(shared.labels[shared.variables.index(i)]), math.prod(shared.sizes)
    if n * combinations > LARGEST_COMPARED:
        # Prices are not negative, and each payer pays for one label at most. Payers are all variables but the first,
        # the selector, whose label only chooses the column of prices.
        most = float(shared.prices.max(initial=0.0)) * (len(shared.variables) - 1)
        return most * (1.0 - np.eye(n))
    return np.moveaxis(shared.table(), shared.around.index(i), 0).reshape(n, -1)


def _unbeaten_states(
    measures: list[tuple[np.ndarray, Neighbours]],
    remaining: list[np.ndarray],
    i: int,
    shared: list[np.ndarray],
) -> np.ndarray:
    """Return the remaining states of variable ``i`` that no other one beats, as an ascending array.

    State b beats state a if b is at least as good in each measure (seconds, and bytes if they count), and better in
    one, whatever remaining states the neighbours take. Of states that are equal in all measures, the earlier one beats
    the later. Differences up to 1e-12 of the largest price are rounding errors. At least one state remains.

    For example, with the prices [1, 5, 1] and no neighbours, only state 0 remains: state 1 costs more, and state 2
    costs as much, but comes later.

    Args:
        measures: a pair ``(prices, neighbours)`` for the seconds, and one for the bytes if they count. It has the
            price of each state of ``i``, and for each neighbour its number and the pair's prices ``[state of i,
            neighbour's state]``.
        remaining: for each variable, the ascending states that remain.
        i: the variable.
        shared: its shared prices (see :func:`_list_rows`), which count as seconds.
    """
    states = remaining[i]
    if len(states) == 1:
        return states
    # not_worse[a, b]: b is at least as good as a, whatever the neighbours choose. strictly[a, b]: b is better in
    # seconds or in bytes.
    not_worse, strictly = np.ones((len(states),) * 2, bool), np.zeros((len(states),) * 2, bool)
    for k, (prices, neighbours) in enumerate(measures):
        rows = [(remaining[j], pair_prices[states]) for j, pair_prices in neighbours]
        rows += [(np.arange(table.shape[1]), table) for table in shared if k == 0]
        worse, slack = _least_excess(prices[states], rows)
        not_worse &= worse >= -slack
        strictly |= worse > slack
    np.fill_diagonal(not_worse, False)
    alive = np.ones(len(states), bool)
    # Check the last states first, so that the first one of equal states remains.
    for a in reversed(range(len(states))):
        rivals = not_worse[a] & alive
        if (rivals & strictly[a]).any() or rivals[:a].any():
            alive[a] = False
    return states[alive]


def _least_excess(
    row: np.ndarray, neighbours: list[tuple[np.ndarray, np.ndarray]]
) -> tuple[np.ndarray, float]:
    """Return the least excess price of one state over another, and the rounding error.

    The excess depends on the states of the neighbours; the least one counts. For example, with the prices [1, 5]
    and one neighbour with the pair prices [[0, 2], [2, 0]], state 1 costs 4 + 2 or 4 - 2 more than state 0. So
    the entry ``[1, 0]`` is 2.

    Args:
        row: the variable's own price of each state.
        neighbours: for each neighbour, its states that remain, and the pair's prices ``[state, neighbour's
            state]``.

    Returns:
        ``(worse, slack)``: the array ``[a, b]`` with the least of "price of a minus price of b"; and the rounding
        error to allow in comparisons, 1e-12 of the largest price that is not :data:`IMPOSSIBLE`.
    """
    worse = row[:, None] - row[None, :]
    scale = float(np.abs(row[row < IMPOSSIBLE / 2]).max(initial=0.0))
    for states, prices in neighbours:
        columns = prices[:, states]
        worse += _least_difference(columns)
        scale = max(scale, float(np.abs(columns[columns < IMPOSSIBLE / 2]).max(initial=0.0)))
    return worse, 1e-12 * scale


def _least_difference(prices: np.ndarray) -> np.ndarray:
    """Return the least ``prices[a, x] - prices[b, x]`` of all columns x, as an array ``[a, b]``.

    For example, ``[[0, 2], [2, 0]]`` gives ``[[0, -2], [-2, 0]]``.

    Large tables are computed row by row, so that temporary arrays fit into the cache.
    """
    (n, m), columns = prices.shape, np.ascontiguousarray(prices.T)  # numpy is slow along a short last axis
    if n * n * m <= 2_000_000:
        array: np.ndarray = (columns[:, :, None] - columns[:, None, :]).min(axis=0)
        return array
    return np.stack([(columns[:, a : a + 1] - columns).min(axis=0) for a in range(n)])


class _Table(NamedTuple):
    """Prices of all combinations of some variables; the array has a dimension per variable."""

    variables: tuple[int, ...]
    prices: np.ndarray


class _Elimination:
    """Elimination of all variables of a problem without hubs.

    Attributes:
        tables: the current tables by number.
        removed: the removed variables with their tables, from which :meth:`run` reads the optimum.
        tables_of: for each variable, the numbers of its tables.
    """

    def __init__(self, problem: ChoiceProblem, largest: int) -> None:
        self.sizes = problem.sizes
        self.largest = largest
        self.tables: dict[int, _Table] = {}
        self.next_number = 0
        self.removed: list[tuple[int, list[_Table]]] = []
        self.tables_of: list[set[int]] = [set() for _ in self.sizes]
        # A variable with one state is decided, so its pairs are prices of the other variables.
        rows = [row.copy() for row in problem.seconds]
        for (i, j), prices in problem.pairs.items():
            if self.sizes[i] == 1:
                rows[j] += prices[0]
            elif self.sizes[j] == 1:
                rows[i] += prices[:, 0]
            else:
                self._add_table((i, j), prices)
        for i, row in enumerate(rows):
            self._add_table((i,), row)
        for shared in problem.shared:
            if math.prod(shared.sizes) > largest:
                raise _too_wide(math.prod(shared.sizes))
            undecided = tuple(v for v in shared.around if self.sizes[v] > 1)
            self._add_table(undecided, shared.table().reshape([self.sizes[v] for v in undecided]))

    def copy(self) -> _Elimination:
        """Return an independent elimination in the current state."""
        duplicate = copy(self)
        duplicate.tables = dict(self.tables)
        duplicate.tables_of = [set(numbers) for numbers in self.tables_of]
        duplicate.removed = [*self.removed]
        return duplicate

    def _add_table(self, variables: tuple[int, ...], prices: np.ndarray) -> None:
        """Add a table of some variables."""
        self.tables[self.next_number] = _Table(variables, prices)
        for v in variables:
            self.tables_of[v].add(self.next_number)
        self.next_number += 1

    def add_row(self, variable: int, prices: np.ndarray) -> None:
        """Add prices of one variable's states."""
        self._add_table((variable,), prices)

    def simplify(self, candidates: Sequence[int]) -> None:
        """Remove the candidates whose neighbours have a table in common without the candidate.

        The removal replaces the candidate by a table over its neighbours, which is no larger than that other table.
        For example, a candidate that pairs with variables 3 and 4 is removed if these two also pair with each other.
        """
        for v in candidates:
            around = {*self._list_neighbours(v)}
            if any(
                around <= {*self.tables[n].variables}
                for u in around
                for n in self.tables_of[u] - self.tables_of[v]
            ):
                self._remove_variable(v, self._count_entries(v))

    def run(self) -> list[int]:
        """Remove all variables one by one, and return the states of the optimum.

        1. The variable with the smallest table is removed first. The size of a variable's table is the product of the
           numbers of states of the variable and of its neighbours; it is computed again after a neighbour is removed.
           Of equal sizes, the lowest number goes first.
        2. The states are decided backwards, the last removed variable first: each takes its cheapest state beside
           those decided before, the first of equal ones. Variables that :meth:`simplify` removed are included.

        Call it once.

        Raises:
            TooWideError: If a table would have more than the largest allowed number of entries.
        """
        is_removed = [False] * len(self.sizes)
        for v, _ in self.removed:
            is_removed[v] = True
        waiting = [(self._count_entries(v), v) for v in range(len(self.sizes)) if not is_removed[v]]
        heapq.heapify(waiting)
        while waiting:
            width, v = heapq.heappop(waiting)
            if is_removed[v]:
                continue
            current_width = self._count_entries(v)
            # A neighbour was removed since the entry was pushed, so sort the variable in again.
            if current_width > width:
                heapq.heappush(waiting, (current_width, v))
                continue
            is_removed[v] = True
            for u in self._remove_variable(v, current_width):
                heapq.heappush(waiting, (self._count_entries(u), u))
        states = [0] * len(self.sizes)
        for v, tables in reversed(self.removed):
            prices = np.zeros(self.sizes[v])
            for table in tables:
                prices += table.prices[tuple(slice(None) if u == v else states[u] for u in table.variables)]
            states[v] = int(prices.argmin())
        return states

    def _remove_variable(self, v: int, width: int) -> tuple[int, ...]:
        """Replace a variable by a table over its neighbours, with the least price over its states.

        For each combination of the neighbours' states, the new table has the sum of all tables of the variable in its
        best state. The variable's tables go to ``order``, from which :meth:`run` reads the optimum.

        For example, the variable has the prices [0, 3] and one neighbour with the pair prices [[5, 0], [1, 1]]. The
        sum is [[5, 0], [4, 4]], so the neighbour gets the table [4, 0].

        Args:
            v: the variable.
            width: the number of entries of the sum of the variable's tables.

        Returns:
            The neighbours; without any, no table is added.

        Raises:
            TooWideError: If ``width`` is above the largest allowed; nothing is changed then.
        """
        if width > self.largest:
            raise _too_wide(width)
        around = self._list_neighbours(v)
        numbers = sorted(self.tables_of[v], key=lambda number: self.tables[number].prices.ndim)
        tables = [self.tables.pop(number) for number in numbers]
        self.removed.append((v, tables))
        total: np.ndarray = np.zeros((1,) * (1 + len(around)))
        for table in tables:
            # The variable's own axis comes first, because numpy is slow along a short last axis.
            prices = _broadcastable_prices(table, (v, *around))
            has_all = np.broadcast_shapes(total.shape, prices.shape) == total.shape
            total = np.add(total, prices, out=total if has_all else None, order="C")
        for u in around:
            self.tables_of[u].difference_update(numbers)
        if around:
            self._add_table(around, total.min(axis=0))
        return around

    def _list_neighbours(self, v: int) -> tuple[int, ...]:
        """Return the variables that have a table in common with a variable, sorted."""
        variables = {u for number in self.tables_of[v] for u in self.tables[number].variables}
        return tuple(sorted(variables - {v}))

    def _count_entries(self, v: int) -> int:
        """Return the number of entries of the table of a variable and its neighbours."""
        return self.sizes[v] * math.prod(self.sizes[u] for u in self._list_neighbours(v))


def _too_wide(width: int) -> TooWideError:
    """Return the error for a table with too many entries."""
    return TooWideError(
        f"the exact search would need a table of {width:.1e} entries; use fewer mesh axes or the integer programme"
    )


def _broadcastable_prices(table: _Table, axes: tuple[int, ...]) -> np.ndarray:
    """Return the prices of a table as an array with a dimension for each variable of ``axes``.

    Variables that the table lacks have a dimension of size 1. For example, a table of the variables (7, 2) with
    the shape (3, 4) has the shape (4, 1, 3) for ``axes=(2, 5, 7)``.
    """
    order = sorted(range(len(table.variables)), key=lambda k: axes.index(table.variables[k]))
    size_of = dict(zip(table.variables, table.prices.shape))
    return table.prices.transpose(order).reshape([size_of.get(variable, 1) for variable in axes])


class _Branches:
    """Branch and bound over the states of hubs.

    Each branch eliminates the other variables.

    Attributes:
        others: the variables that are no hubs.
        around: for each hub, its neighbours as positions in ``others``, with prices ``[neighbour's state, hub's
            state]``.
        start: the elimination after the steps that are equal in all branches.
    """

    def __init__(self, problem: ChoiceProblem, largest: int) -> None:
        self.problem, self.largest = problem, largest
        self.hubs = problem.hubs
        self.others = [v for v in range(len(problem)) if v not in set(problem.hubs)]
        position = {v: k for k, v in enumerate(self.others)}
        inner = {(i, j): m for (i, j), m in problem.pairs.items() if i in position and j in position}
        self.pairs = {(position[i], position[j]): m for (i, j), m in inner.items()}
        self.shared = [shared.numbered(position) for shared in problem.shared]
        neighbours = problem.neighbours()
        self.around = {hub: [(position[v], prices.T) for v, prices in neighbours[hub]] for hub in self.hubs}
        rows = [problem.seconds[v] for v in self.others]
        self.start = _Elimination(ChoiceProblem(rows, self.pairs, shared=self.shared), largest)
        touched = {v for around in self.around.values() for v, _ in around}
        # Variables without a hub as neighbour have equal prices in all branches.
        self.start.simplify([v for v in range(len(self.others)) if v not in touched])

    def run(self) -> list[int]:
        """Return the states of all variables in the optimum, by branch and bound over the hubs.

        A branch is a choice of states for some hubs; the first branch has none. For each branch:

        1. Compute a lower bound of its price. End the branch if the bound is not below the best price so far.
        2. Complete the assignment that belongs to the bound: each undecided hub takes its cheapest state. The
           cheapest assignment so far is stored.
        3. End the branch if no hub costs more than its own lower bound (see :meth:`_decide_hubs`), because the
           assignment then attains the bound.
        4. Else decide the hub that is farthest above its bound: one new branch per state of the hub, the state of the
           assignment first.

        Differences up to a relative 1e-12 do not count.

        Raises:
            TooWideError: If the elimination of a branch needs too large a table.
        """
        best: tuple[float, list[int]] | None = None
        waiting: list[dict[int, int]] = [{}]
        while waiting:
            decided = waiting.pop()
            bound, states = self._solve_relaxed(decided)
            if best is not None and bound >= best[0] * (1 - 1e-12):
                continue
            slack, hub = self._decide_hubs(states, decided)
            price = self.problem.price(states)
            if best is None or price < best[0]:
                best = (price, states)
            if hub is not None and slack > 1e-12 * abs(price):
                order = sorted(range(self.problem.sizes[hub]), key=lambda s: s == states[hub])
                waiting += [{**decided, hub: state} for state in order]
        assert best is not None
        return best[1]

    def _solve_relaxed(self, decided: dict[int, int]) -> tuple[float, list[int]]:
        """Return a lower bound in seconds with some hubs decided, and the other variables' states there.

        * A decided hub adds the prices of its state.
        * An undecided hub adds its least price, and to each state of a neighbour the least pair price. These prices
          may belong to different states of the hub, so the sum is never above the real price.
        * The other variables are decided by elimination.

        For example, a hub has the prices [1, 3] and one neighbour with the pair prices [[4, 0], [2, 5]]. Undecided,
        it adds 1, and [0, 2] to the neighbour's states. Decided as state 1, it adds 3, and [0, 5].

        Args:
            decided: the state of each decided hub, by hub.

        Returns:
            ``(bound, states)``; ``states`` has a state per variable of the problem, 0 for each hub.

        Raises:
            TooWideError: If the elimination needs too large a table.
        """
        rows, run = [self.problem.seconds[v].copy() for v in self.others], self.start.copy()
        fixed = 0.0
        for hub in self.hubs:
            state, hub_prices = decided.get(hub), self.problem.seconds[hub]
            fixed += float(hub_prices.min() if state is None else hub_prices[state])
            for v, prices in self.around[hub]:
                row = prices.min(axis=1) if state is None else prices[:, state]
                rows[v] += row
                run.add_row(v, row)
        small = ChoiceProblem(rows, self.pairs, shared=self.shared)
        chosen = run.run()
        states = [0] * len(self.problem)
        for v, state in zip(self.others, chosen):
            states[v] = state
        return fixed + small.price(chosen), states

    def _decide_hubs(self, states: list[int], decided: dict[int, int]) -> tuple[float, int | None]:
        """Set each hub in ``states``, in place, to its decided state or else to its cheapest state.

        The price of a hub's state is its seconds plus its pair prices with the states of the other variables. The
        lower bound of a hub adds the least of its seconds and the least of each pair's prices, which may belong to
        different states.

        For example, a hub has the seconds [1, 3], and the pair prices [4, 0] with its only neighbour's state. Its
        states cost 5 and 3, so it is set to state 1. Its lower bound is 1 + 0, so it is 2 above the bound.

        Args:
            states: the state of each variable; those of hubs are overwritten.
            decided: the state of each decided hub, by hub.

        Returns:
            ``(distance, hub)`` of the undecided hub whose price is farthest above its lower bound; ``(0.0, None)`` if
            no price is above its bound.
        """
        largest_distance = 0.0
        farthest_hub: int | None = None
        for hub in self.hubs:
            if hub in decided:
                states[hub] = decided[hub]
                continue
            total, least = self.problem.seconds[hub].copy(), float(self.problem.seconds[hub].min())
            for v, prices in self.around[hub]:
                row = prices[states[self.others[v]]]
                total += row
                least += float(row.min())
            states[hub] = int(total.argmin())
            distance = float(total.min()) - least
            if distance > largest_distance:
                largest_distance, farthest_hub = distance, hub
        return largest_distance, farthest_hub


def improve(
    problem: ChoiceProblem, states: Sequence[int], remaining: Sequence[np.ndarray] | None = None
) -> Solution:
    """Improve an assignment by a local search; return a solution that is at least as good.

    Groups of neighbouring variables, called windows, are decided again while the other variables stay, see
    :func:`_decide_all_windows`. States that cannot be part of an optimum are left out first, so that windows have few
    states. A variable whose given state is left out starts in its cheapest remaining state. If the search finds no
    lower price, the solution has the given states. It is never marked as optimal.

    Args:
        problem: the problem.
        states: the given states.
        remaining: the result of :func:`reduce_domains` for the problem, if it was computed before; None to compute
            it.
    """
    remaining = reduce_domains(problem) if remaining is None else remaining
    small = restrict(problem, remaining)
    start = list(states)
    for v, allowed in enumerate(remaining):
        if start[v] not in allowed:
            prices = [problem.price_of_states(start, v, int(s)) for s in allowed]
            start[v] = int(allowed[int(np.argmin(prices))])
    inside = [int(np.flatnonzero(allowed == s)[0]) for allowed, s in zip(remaining, start)]
    inside = _decide_all_windows(small, inside)
    states_now = [int(remaining[v][s]) for v, s in enumerate(inside)]
    best = states_now if problem.price(states_now) < problem.price(states) else list(states)
    return Solution.of(problem, best, "local search", False)


def _decide_all_windows(problem: ChoiceProblem, states: list[int]) -> list[int]:
    """Decide all windows again, round by round, until a round does not lower the price.

    A window is a variable, its centre, and the variables nearest to it, :data:`WINDOW` (64) in all; all hubs are
    decided with it. Every 32nd variable is a centre unless it is a hub, so windows overlap: with 200 variables, the
    centres are 0, 32, 64, ..., 192. There are at most :data:`ROUNDS` (3) rounds. If all variables that are no hubs
    fit into one window, this window is decided once.

    Args:
        problem: the problem.
        states: the state of each variable; the list is not changed.

    Returns:
        The new states; the price is never higher.
    """
    current, price = states, problem.price(states)
    neighbours, hubs = problem.neighbours(), set(problem.hubs)
    for _ in range(ROUNDS):
        price_before = price
        others = [v for v in range(len(problem)) if v not in hubs]
        single_window = len(others) <= WINDOW
        if single_window:
            current = _decide_window(problem, neighbours, current, others)
        centres = range(0) if single_window else range(0, len(problem), WINDOW // 2)
        for centre in centres:
            if centre not in hubs:
                current = _decide_window(
                    problem, neighbours, current, _nearest_variables(neighbours, centre, hubs)
                )
        price = problem.price(current)
        if single_window or price >= price_before * (1 - 1e-12):
            break
    return current


def _nearest_variables(around: list[Neighbours], centre: int, hubs: set[int]) -> list[int]:
    """Return the variables nearest to ``centre``, itself included, in ascending order.

    There are at most :data:`WINDOW` (64). The distance of two variables is the smallest number of pairs on a path
    between them. Hubs are left out, and no path leads through them, because hubs pair with nearly all variables.
    On a chain, half of the variables are on each side.
    """
    window, reached = [centre], {centre}
    for v in window:
        for u, _ in around[v]:
            if u not in reached and u not in hubs and len(window) < WINDOW:
                reached.add(u)
                window.append(u)
    return sorted(window)


def _decide_window(
    problem: ChoiceProblem, around: list[Neighbours], current: list[int], chosen: list[int]
) -> list[int]:
    """Decide some variables and all hubs again while the others stay; return the better states.

    The variables of the window, ``chosen`` and all hubs, form a smaller problem, which elimination solves. Variables
    outside of the window stay in their current states, and pair prices and shared prices with them count. If the
    tables are too large, the two halves of ``chosen`` are decided one after the other. ``current`` is returned if the
    new states are not cheaper.

    Args:
        problem: the problem.
        around: the neighbours of each variable.
        current: the state of each variable; the list is not changed.
        chosen: the variables to decide.
    """
    window = sorted({*chosen, *problem.hubs})
    number_of = {v: k for k, v in enumerate(window)}
    rows, hubs = [problem.seconds[v].copy() for v in window], [number_of[hub] for hub in problem.hubs]
    small = ChoiceProblem(rows, hubs=hubs)
    for v in window:
        for u, prices in around[v]:
            if u not in number_of:
                small.seconds[number_of[v]] = small.seconds[number_of[v]] + prices[:, current[u]]
            elif v < u:
                small.add_pair(number_of[v], number_of[u], prices)
    _add_shared(problem, small, number_of, current)
    try:
        answer = eliminate(small)
    except TooWideError:
        # This ends, because one variable with the hubs always fits: hubs are decided in branches, and variables outside
        # of the window have one state, so the largest table has one entry per state of the variable.
        for half in (chosen[: len(chosen) // 2], chosen[len(chosen) // 2 :]):
            current = _decide_window(problem, around, current, half)
        return current
    improved = list(current)
    for v, state in zip(window, answer.states):
        improved[v] = state
    is_better = problem.price_around(improved, window) < problem.price_around(current, window)
    return improved if is_better else current


def _add_shared(
    problem: ChoiceProblem, small: ChoiceProblem, number_of: dict[int, int], current: list[int]
) -> None:
    """Add the shared prices of a window's variables to the window's problem.

    A variable outside of the window that takes part becomes a variable of ``small`` with its current state only.
    For example, if variables 2, 5 and 9 pay together, and 2 and 5 are in the window, 9 is added. Of
    ``problem.shared``, the prices without a variable of the window are left out.

    Args:
        problem: the whole problem.
        small: the problem of the window; it is changed.
        number_of: the number in ``small`` of each variable of the window; it is not changed.
        current: the current state of each variable of ``problem``.
    """
    number_of, window = dict(number_of), {*number_of}
    for shared in problem.shared:
        if window.isdisjoint(shared.variables):
            continue
        states: dict[int, np.ndarray] = {}
        for v in shared.around:
            states[v] = np.arange(problem.sizes[v]) if v in window else np.array([current[v]])
            if v not in number_of:
                number_of[v] = small.add_variable(np.zeros(1))
        small.shared.append(shared.restrict(states).numbered(number_of))
