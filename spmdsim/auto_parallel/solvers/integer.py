"""The exact optimum as an integer program, solved by HiGHS (scipy), which supports limits on memory.

It has one binary variable per state of each variable, and one continuous variable per combination of a pair, whose
sums over rows and columns equal the states' binaries (Alpa's linearisation, 2022). The relaxation is nearly always
integral.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from spmdsim.auto_parallel.solvers.choice_problem import IMPOSSIBLE, ChoiceProblem, SharedPrice, Solution
from spmdsim.auto_parallel.solvers.elimination import TooWideError, eliminate, reduce_domains, restrict
from spmdsim.errors import InputError, SpmdError, many

#: Status of scipy's ``milp`` if HiGHS reached its time limit.
OUT_OF_TIME = 1
#: Relative difference up to which times count as equal, because their terms are added in different orders.
EQUAL = 1e-9


class DoesNotFitError(SpmdError, ValueError):
    """Error: no assignment stays below the memory limit.

    ``least`` is the smallest limit that is known to be met, in bytes; 0 if unknown.
    """

    least: float = 0.0

    @classmethod
    def below(cls, limit: float, least: float) -> DoesNotFitError:
        """Return the error that nothing fits into ``limit`` bytes; ``least`` bytes are enough."""
        return cls._of(
            f"nothing fits into {many(round(limit), 'byte')} per rank; the smallest limit that can be met is {least:,.0f}",
            least,
        )

    @classmethod
    def none_found(cls, limit: float, least: float) -> DoesNotFitError:
        """Return the error for a search that tried assignments, none of which fits into the memory.

        Args:
            limit: the limit in bytes per rank.
            least: the lowest peak memory of the tried assignments, in bytes; the error's attribute ``least``.
        """
        return cls._of(
            f"no strategies were found that fit into {many(round(limit), 'byte')} per rank; of those tried, the smallest limit "
            f"that can be met is {least:,.0f}",
            least,
        )

    @classmethod
    def _of(cls, text: str, least: float) -> DoesNotFitError:
        """Return the error with this text and ``least``."""
        error = cls(text)
        error.least = least
        return error


def solve_integer(
    problem: ChoiceProblem, limit: float | None = None, *, seconds_allowed: float = 60.0, gap: float = 1e-9
) -> Solution:
    """Return the cheapest assignment that stores at most ``limit`` bytes, by the solver HiGHS.

    If HiGHS ends within ``seconds_allowed``, the price is at most the share ``gap`` (1e-9) above the optimum, and the
    solution is marked as optimal. If the time runs out, the best assignment so far is returned, not marked as
    optimal.

    Args:
        problem: the problem.
        limit: bytes; None for no limit.
        seconds_allowed: HiGHS stops after this time with its best assignment. While it has none, it starts again with
            twice the time.
        gap: relative gap of the price at which HiGHS stops.

    Raises:
        InputError: If scipy is not installed.
        DoesNotFitError: If nothing fits, with the smallest limit that would; or if HiGHS finds no assignment, or none
            below the limit in six runs.
    """
    _require_scipy()
    bound, remaining = limit, reduce_domains(problem, memory=limit is not None)
    small = restrict(problem, remaining)
    for _ in range(6):
        inside = _run_solver(small, bound, seconds_allowed, gap)
        if inside is None and (bound is None or smallest_memory(problem) <= bound):
            # The presolve of some versions of HiGHS (scipy 1.15) finds problems infeasible that are not.
            inside = _run_solver(small, bound, seconds_allowed, gap, presolve=False)
        if inside is None:
            break
        states = [int(remaining[v][s]) for v, s in enumerate(inside.states)]
        solution = Solution.of(problem, states, inside.method, inside.optimal)
        if limit is None or bound is None or solution.memory <= limit:
            return solution
        # The solver allows a small violation of the limit, so lower the limit by the violation.
        bound -= max(solution.memory - limit, 0.5)
    raise _too_small_error(problem, limit)


def find_lightest(problem: ChoiceProblem, solution: Solution, *, seconds_allowed: float = 60.0) -> Solution:
    """Return the assignment with the least memory among those that are as fast as a solution.

    HiGHS returns an arbitrary one of equally fast assignments, so this is a second run. Times count as equal up to
    the relative difference :data:`EQUAL` (1e-9). The result is ``solution`` itself if HiGHS finds none with less
    memory. scipy must be installed.

    Args:
        problem: the problem.
        solution: an assignment of its variables.
        seconds_allowed: as for :func:`solve_integer`.
    """
    remaining = reduce_domains(problem, memory=True)
    lighter = _run_solver(
        restrict(problem, remaining),
        solution.memory,
        seconds_allowed,
        gap=1e-9,
        most_seconds=solution.seconds,
    )
    if lighter is None:
        return solution
    states = [int(remaining[v][s]) for v, s in enumerate(lighter.states)]
    candidate = Solution.of(problem, states, solution.method, solution.optimal)
    # Check the time, because the solver allows a small violation of constraints.
    as_fast = candidate.seconds <= solution.seconds * (1 + EQUAL)
    return candidate if as_fast and candidate.memory < solution.memory else solution


def _require_scipy() -> None:
    """Raise InputError if scipy is not installed; the solver HiGHS is part of scipy."""
    try:
        import scipy.optimize  # noqa: F401
    except ImportError:
        raise InputError(
            "a search with a memory limit needs scipy, which is not installed: pip install scipy"
        ) from None


def _run_solver(
    problem: ChoiceProblem,
    limit: float | None,
    seconds_allowed: float,
    gap: float,
    presolve: bool = True,
    most_seconds: float | None = None,
) -> Solution | None:
    """Let HiGHS solve the integer program of a problem once; return its assignment, or None.

    HiGHS tolerates a small violation of the limits, so the caller has to check them.

    Args:
        problem: the problem.
        limit: the most bytes; None for any number.
        seconds_allowed: time limit of the first run in seconds. While HiGHS has no assignment at the limit, it starts
            again with twice the time, as often as needed.
        gap: relative gap at which HiGHS stops.
        presolve: True to let HiGHS simplify the program first.
        most_seconds: None: the cheapest assignment is searched. Otherwise it is the one with the least memory among
            those with at most this price.

    Returns:
        The assignment, which is marked as optimal (up to ``gap``) unless the time ran out. None if HiGHS reports that
        there is none, or fails.
    """
    from scipy.optimize import LinearConstraint, milp

    model = _Model(problem)
    constraints = [LinearConstraint(model.matrix(), model.left, model.right)]
    unit = max(model.memory.max(initial=0.0), 1.0)
    if limit is not None:
        constraints.append(LinearConstraint(model.memory[None, :] / unit, -np.inf, limit / unit))
    # Scale prices and bytes to at most 1, because the tolerances of HiGHS are absolute numbers.
    allowed = model.prices < IMPOSSIBLE / 2
    prices = np.where(allowed, model.prices, 0.0)
    scale = float(np.abs(prices).max(initial=0.0)) or 1.0
    target = prices / scale
    if most_seconds is not None:
        constraints.append(LinearConstraint(target[None, :], -np.inf, most_seconds / scale))
        target = model.memory / unit
    while True:
        answer = milp(
            target,
            integrality=model.binary,
            bounds=(0, np.where(allowed, 1.0, 0.0)),
            constraints=constraints,
            options={"time_limit": seconds_allowed, "mip_rel_gap": gap, "presolve": presolve},
        )
        if answer.x is not None or answer.status != OUT_OF_TIME:
            break
        # Go on, because a slow machine is no proof that nothing fits.
        seconds_allowed *= 2
    if answer.x is None:
        return None
    states = [int(np.argmax(answer.x[first:end])) for first, end in model.spans]
    return Solution.of(problem, states, "integer programme", answer.status == 0)


def _too_small_error(problem: ChoiceProblem, limit: float | None) -> DoesNotFitError:
    """Return the error for a solver that found no assignment.

    If the limit is below the least memory of any assignment, the error names this memory. Otherwise it says that
    no assignment was found.
    """
    least = smallest_memory(problem)
    if limit is not None and least > limit:
        return DoesNotFitError.below(limit, least)
    within = "" if limit is None else f" within {many(round(limit), 'byte')} per rank"
    return DoesNotFitError(f"no assignment{within} was found")


def smallest_memory(problem: ChoiceProblem) -> float:
    """Return the bytes of the assignment of ``problem`` with the least memory.

    Assignments with an :data:`IMPOSSIBLE` pair price do not count. Prices of single states are ignored, even if
    they are impossible. The bytes are computed by elimination, or by the solver HiGHS if tables are too large for
    that.
    """
    light = problem.weighted(1.0, 0.0)
    for key, prices in problem.pairs.items():
        light.pairs[key] = light.pairs[key] + np.where(prices >= IMPOSSIBLE / 2, IMPOSSIBLE, 0.0)
    try:
        return eliminate(light).memory
    except TooWideError:
        return solve_integer(light).memory


class _Model:
    """Columns and rows of the integer program, built up by ``_put``.

    Attributes:
        spans: for each variable, the range (first, end) of its states' columns.
        rows, columns, factors: the positions and values of the constraint matrix's entries, one array per ``_put``.
        prices: the seconds of each column.
        memory: the bytes of each column.
        left: the lower bound of each row.
        right: the upper bound of each row.
        binary: for each column, 1 if it is the binary of a state, else 0.
        shape: the number of rows and columns.
    """

    def __init__(self, problem: ChoiceProblem) -> None:
        ends = list(itertools.accumulate(problem.sizes))
        self.spans = [(end - size, end) for end, size in zip(ends, problem.sizes)]
        self.rows: list[Any] = []
        self.columns: list[Any] = []
        self.factors: list[Any] = []
        prices, memory = [*problem.seconds], [*problem.memory]
        count, row = ends[-1] if ends else 0, 0
        right: list[np.ndarray] = []
        # Each variable has one state: its columns add up to 1.
        for first, end in self.spans:
            self._put(np.full(end - first, row), np.arange(first, end), 1.0)
            row += 1
        right.append(np.ones(row))
        for pair, seconds in problem.pairs.items():
            row = self._add_pair(pair, count + np.arange(seconds.size).reshape(seconds.shape), row)
            count += seconds.size
            right.append(np.zeros(sum(seconds.shape)))
            prices.append(seconds.ravel())
            extra = problem.memory_pairs.get(pair)
            memory.append(np.zeros(seconds.size) if extra is None else extra.ravel())
        left = [*right]
        for shared in problem.shared:
            cell_prices, row, count, lower_bounds = self._share(shared, row, count)
            prices.append(cell_prices)
            memory.append(np.zeros(len(cell_prices)))
            left.append(lower_bounds)
            right.append(np.zeros(len(lower_bounds)))
        self.left = np.concatenate(left)
        self.prices, self.memory = np.concatenate(prices), np.concatenate(memory)
        self.right = np.concatenate(right)
        self.binary = (np.arange(count) < (ends[-1] if ends else 0)).astype(int)
        self.shape = (row, count)

    def _add_pair(self, pair: tuple[int, int], cells: np.ndarray, row: int) -> int:
        """Add the rows of a pair's table of cells; return the new number of rows.

        A cell is 1 if both variables have its states. So the cells of a row of the table add up to a state of the first
        variable, the cells of a column to a state of the second one.

        Args:
            pair: both variables.
            cells: the number of the column of each cell, ``[state of the first, state of the second]``.
            row: the number of rows so far.
        """
        for grid, variable in ((cells, pair[0]), (cells.T, pair[1])):
            sums = row + np.arange(len(grid))
            self._put(np.repeat(sums, grid.shape[1]), grid.ravel(), 1.0)
            self._put(sums, np.arange(*self.spans[variable]), -1.0)
            row += len(grid)
        return row

    def _share(self, shared: SharedPrice, row: int, count: int) -> tuple[np.ndarray, int, int, np.ndarray]:
        """Add the columns and rows of a price that several variables pay once for each label.

        ``shared.variables`` has the selector first, then the payers. Each state has a label. A payer pays the price of
        the pair (its label, the selector's label); payers with equal labels pay once together. The integer program
        gets these columns:

        * Paid cells: a column per pair, whose cost is the price of the pair.
        * Cells of each payer: a column per pair, without cost. It is 1 if the payer and the selector have these labels.

        For the rows, see :meth:`_add_payer`.

        For example, the selector and two payers have label 0. The cells ``[0, 0]`` of both payers are 1. So the one
        paid cell ``[0, 0]`` is 1, too, and ``prices[0, 0]`` is paid once.

        Args:
            shared: the price.
            row: the number of rows so far, which is the number of the first new row.
            count: the number of columns so far, which is the number of the first new column.

        Returns:
            The prices of the new columns, the new number of rows and of columns, and the lower bound of each new row.
            The upper bounds are 0.
        """
        n, m = shared.prices.shape
        paid_cells = count + np.arange(n * m).reshape(n, m)
        prices, count = [shared.prices.ravel()], count + n * m
        lower_bounds: list[np.ndarray] = []
        for payer in range(1, len(shared.variables)):
            row = self._add_payer(shared, payer, row, count, paid_cells)
            count += n * m
            prices.append(np.zeros(n * m))
            lower_bounds.append(np.concatenate([np.zeros(n + m), np.full(n * m, -np.inf)]))
        return np.concatenate(prices), row, count, np.concatenate(lower_bounds)

    def _add_payer(
        self, shared: SharedPrice, payer: int, row: int, count: int, paid_cells: np.ndarray
    ) -> int:
        """Add the rows of one payer of a shared price; return the new number of rows.

        With n labels of payers and m of the selector, these rows are:

        * n equations: the cells of one of the payer's labels add up to the payer's states with this label;
        * m equations: the cells of one of the selector's labels add up to the selector's states with this label;
        * n * m inequalities: a cell is at most the paid cell of its pair. So two payers with equal labels need the
          price once, not twice.

        Args:
            shared: the price.
            payer: the payer's position in ``shared.variables``.
            row: the number of the first new row.
            count: the number of the payer's first cell.
            paid_cells: the numbers of the paid cells, of shape (n, m).
        """
        payer_cells: np.ndarray = count + np.arange(paid_cells.size).reshape(paid_cells.shape)
        for position, grid in ((payer, payer_cells), (0, payer_cells.T)):
            state_columns, state_labels = self.spans[shared.variables[position]], shared.labels[position]
            sums = row + np.arange(len(grid))
            self._put(np.repeat(sums, grid.shape[1]), grid.ravel(), 1.0)
            self._put(row + state_labels, np.arange(*state_columns), -1.0)
            row += len(grid)
        # Each of the payer's cells minus the paid cell is at most 0.
        rows_below = row + np.arange(paid_cells.size)
        self._put(rows_below, payer_cells.ravel(), 1.0)
        self._put(rows_below, paid_cells.ravel(), -1.0)
        return row + paid_cells.size

    def _put(self, rows: np.ndarray, columns: np.ndarray, factor: float) -> None:
        """Add entries of the constraint matrix at these rows and columns, all equal to ``factor``."""
        self.rows.append(rows)
        self.columns.append(columns)
        self.factors.append(np.full(len(columns), factor))

    def matrix(self) -> Any:
        """Return the sparse constraint matrix."""
        from scipy.sparse import csr_matrix

        positions = (np.concatenate(self.rows), np.concatenate(self.columns))
        return csr_matrix((np.concatenate(self.factors), positions), shape=self.shape)
