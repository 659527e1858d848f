"""Time against memory: all solutions that no other beats in both."""

from __future__ import annotations

from collections.abc import Iterable

from spmdsim.auto_parallel.solvers.choice_problem import ChoiceProblem, Solution
from spmdsim.auto_parallel.solvers.integer import DoesNotFitError, solve_integer


def pareto_filter(costs: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The (first, second) pairs that no other pair beats in both: sorted by the first, the second falling.

    MindSpore keeps an operator's candidates this way, by computation and communication.

    >>> pareto_filter([(100, 20), (200, 10), (300, 50)])
    [(100, 20), (200, 10)]
    """
    kept: list[tuple[float, float]] = []
    for pair in sorted(costs):
        if not kept or pair[1] < kept[-1][1]:
            kept.append(pair)
    return kept


def solutions(problem: ChoiceProblem, most: int = 20, step: float = 0.0, gap: float = 1e-9) -> list[Solution]:
    """The frontier of a problem, fastest first.

    The limit on memory is lowered below the last solution's until nothing fits.

    Args:
        problem: the problem.
        most: points at most; then the step between them is widened and the frontier thinned out.
        step: by which share the memory must at least fall from point to point.
        gap: how far from the fastest a point may be.
    """
    frontier: list[Solution] = []
    limit: float | None = None
    tiny = _tie_break(problem)
    while len(frontier) < most:
        try:
            answer = solve_integer(problem.weighted(tiny), limit, gap=gap)
        except DoesNotFitError:
            break
        answer = Solution.of(problem, answer.states, answer.method, answer.optimal)
        frontier.append(answer)
        limit = answer.memory * (1.0 - step) - 0.5
        if limit <= 0:
            break
    kept = pareto_filter((s.seconds, s.memory) for s in frontier)
    return [next(s for s in frontier if (s.seconds, s.memory) == pair) for pair in kept]


def _tie_break(problem: ChoiceProblem) -> float:
    """Seconds per byte, small enough that bytes only decide between equal times."""
    seconds = sum(float(row[row < 1e29].max(initial=0.0)) for row in problem.seconds)
    memory = sum(float(row.max(initial=0.0)) for row in problem.memory) or 1.0
    return 1e-6 * seconds / memory if seconds else 1e-12
