"""Brute force solves a choice problem by trying all assignments. Tests compare the solvers with it."""

from __future__ import annotations

import math

import numpy as np

from spmdsim.auto_parallel.solvers.choice_problem import ChoiceProblem, Solution
from spmdsim.auto_parallel.solvers.integer import DoesNotFitError
from spmdsim.errors import InputError


def brute_force(problem: ChoiceProblem, limit: float | None = None, most: int = 5_000_000) -> Solution:
    """Return the cheapest assignment of a choice problem by trying all assignments.

    Args:
        problem: the prices and the memory of all choices.
        limit: bytes of memory that a solution may take; None for no limit.
        most: the largest number of assignments that are tried.

    Raises:
        InputError: If the problem has more than ``most`` assignments.
        DoesNotFitError: If each assignment needs more memory than ``limit``.
    """
    hubs = set(problem.hubs)
    sizes = tuple(1 if v in hubs else n for v, n in enumerate(problem.sizes))
    combinations = math.prod(sizes)
    if combinations > most:
        raise InputError(f"{combinations:.1e} assignments are too many to try; at most {most:.1e}")
    seconds, memory = np.zeros(sizes), np.zeros(sizes)
    for rows, pairs, total in (
        (problem.seconds, problem.pairs, seconds),
        (problem.memory, problem.memory_pairs, memory),
    ):
        for i, row in enumerate(rows):
            if i not in hubs:
                total += row.reshape([-1 if k == i else 1 for k in range(len(sizes))])
        for (i, j), m in pairs.items():
            if i not in hubs and j not in hubs:
                total += m.reshape([sizes[k] if k in (i, j) else 1 for k in range(len(sizes))])
    for shared in problem.shared:
        (selector, selector_labels), *payers = zip(shared.variables, shared.labels)
        for label, prices in enumerate(shared.prices):
            is_paid = np.zeros((1,) * len(sizes), bool)
            for v, labels in payers:
                is_paid = is_paid | _along(labels == label, v, sizes)
            seconds += is_paid * _along(prices[selector_labels], selector, sizes)
    for hub in problem.hubs:
        # The choices of the other variables decide each hub, so combinations of hubs are not tried.
        seconds += np.minimum.reduce([_with_hub(problem, hub, s) for s in range(problem.sizes[hub])])
    if limit is not None:
        seconds = np.where(memory <= limit, seconds, np.inf)
    best = np.unravel_index(int(seconds.argmin()), sizes)
    if not np.isfinite(seconds[best]):
        raise DoesNotFitError.below(limit or 0.0, float(memory.min()))
    return Solution.of(problem, problem.with_best_hubs([int(k) for k in best]), "brute force", True)


def _along(row: np.ndarray, variable: int, sizes: tuple[int, ...]) -> np.ndarray:
    return row.reshape([-1 if k == variable else 1 for k in range(len(sizes))])


def _with_hub(problem: ChoiceProblem, hub: int, state: int) -> np.ndarray:
    """Return the seconds of ``hub`` in ``state`` for each combination of the other variables.

    The array has one dim per variable of ``problem``. Its size is 1 along variables without influence on the hub.
    """
    count = len(problem)
    total = np.full((1,) * count, problem.seconds[hub][state])
    for (i, j), m in problem.pairs.items():
        if hub in (i, j):
            v, row = (j, m[state]) if i == hub else (i, m[:, state])
            total = total + row.reshape([-1 if k == v else 1 for k in range(count)])
    return total
