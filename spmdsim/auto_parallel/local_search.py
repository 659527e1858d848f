"""Improving a solution: part of the variables is decided anew, exactly, while the others stay.

Each round goes over windows of neighbouring variables; within a window the optimum is found by elimination, so a
round never makes a solution worse, and a window that holds a whole layer finds what single changes cannot.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spmdsim.auto_parallel.elimination import TooWideError, eliminate
from spmdsim.auto_parallel.problem import Problem, Solution


def improve(problem: Problem, states: Sequence[int], *, window: int = 12, rounds: int = 4) -> Solution:
    """A solution that is at least as good as ``states``.

    Args:
        problem: the problem.
        states: where to start.
        window: variables that are decided together.
        rounds: how often all windows are visited at most; it ends early when nothing improves.
    """
    now = list(states)
    price = problem.price(now)
    around = problem.neighbours()
    for _ in range(rounds):
        before = price
        for centre in range(0, len(problem), max(1, window // 2)):
            chosen = _window(around, centre, window)
            now = _decide(problem, around, now, chosen)
        price = problem.price(now)
        if price >= before * (1 - 1e-12):
            break
    return Solution.of(problem, now, "local search", False)


def _window(around: list[list[tuple[int, np.ndarray]]], centre: int, size: int) -> list[int]:
    """The variables nearest to one, by number of pairs in between."""
    found, seen = [centre], {centre}
    for v in found:
        for u, _ in around[v]:
            if u not in seen and len(found) < size:
                seen.add(u)
                found.append(u)
    return sorted(found)


def _decide(
    problem: Problem, around: list[list[tuple[int, np.ndarray]]], now: list[int], chosen: list[int]
) -> list[int]:
    place = {v: k for k, v in enumerate(chosen)}
    small = Problem([problem.seconds[v].copy() for v in chosen])
    for v in chosen:
        for u, prices in around[v]:
            if u not in place:
                small.seconds[place[v]] = small.seconds[place[v]] + prices[:, now[u]]
            elif v < u:
                small.add_pair(place[v], place[u], prices)
    try:
        answer = eliminate(small, 2_000_000)
    except TooWideError:
        return now
    found = list(now)
    for v, state in zip(chosen, answer.states):
        found[v] = state
    return found if problem.price_around(found, chosen) < problem.price_around(now, chosen) else now
