"""Improving a solution: part of the variables is decided anew, exactly, while the others stay.

Each round goes over windows of neighbouring variables; within a window the optimum is found by elimination, so a
round never makes a solution worse, and a window that holds a whole layer finds what single changes cannot.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spmdsim.auto_parallel.solvers.choice_problem import ChoiceProblem, Solution
from spmdsim.auto_parallel.solvers.elimination import TooWideError, eliminate, reduce_domains, restrict


def improve(
    problem: ChoiceProblem, states: Sequence[int], *, windows: Sequence[int] = (64,), rounds: int = 3
) -> Solution:
    """A solution that is at least as good as ``states``.

    States that no optimum needs are crossed out first, which makes the windows small.

    Args:
        problem: the problem.
        states: where to start.
        windows: how many variables are decided together, one size after the other.
        rounds: how often all windows of a size are visited at most; it ends early when nothing improves.
    """
    kept = reduce_domains(problem)
    small = restrict(problem, kept)
    start = list(states)
    for v, allowed in enumerate(kept):
        if start[v] not in allowed:
            prices = [problem.price_of_states(start, v, int(s)) for s in allowed]
            start[v] = int(allowed[int(np.argmin(prices))])
    inside = [int(np.flatnonzero(allowed == s)[0]) for allowed, s in zip(kept, start)]
    for window in windows:
        inside = _rounds(small, inside, window, rounds)
        if window >= len(problem):
            break
    states_now = [int(kept[v][s]) for v, s in enumerate(inside)]
    best = states_now if problem.price(states_now) < problem.price(states) else list(states)
    return Solution.of(problem, best, "local search", False)


def _rounds(problem: ChoiceProblem, states: list[int], window: int, rounds: int) -> list[int]:
    """Decide all windows anew until nothing improves."""
    now, price = states, problem.price(states)
    around, hubs = problem.neighbours(), set(problem.hubs)
    for _ in range(rounds):
        before = price
        others = [v for v in range(len(problem)) if v not in hubs]
        everything = len(others) <= window
        if everything:
            now = _decide(problem, around, now, others)
        for centre in () if everything else range(0, len(problem), max(1, window // 2)):
            if centre not in hubs:
                now = _decide(problem, around, now, _window(around, centre, window, hubs))
        price = problem.price(now)
        if everything or price >= before * (1 - 1e-12):
            break
    return now


def _window(around: list[list[tuple[int, np.ndarray]]], centre: int, size: int, hubs: set[int]) -> list[int]:
    """The variables nearest to one, by number of pairs in between; not by way of hubs, which join everything."""
    window, seen = [centre], {centre}
    for v in window:
        for u, _ in around[v]:
            if u not in seen and u not in hubs and len(window) < size:
                seen.add(u)
                window.append(u)
    return sorted(window)


def _decide(
    problem: ChoiceProblem, around: list[list[tuple[int, np.ndarray]]], now: list[int], chosen: list[int]
) -> list[int]:
    """Decide the chosen variables anew, and all hubs with them."""
    every = sorted({*chosen, *problem.hubs})
    place = {v: k for k, v in enumerate(every)}
    small = ChoiceProblem(
        [problem.seconds[v].copy() for v in every], hubs=[place[hub] for hub in problem.hubs]
    )
    for v in every:
        for u, prices in around[v]:
            if u not in place:
                small.seconds[place[v]] = small.seconds[place[v]] + prices[:, now[u]]
            elif v < u:
                small.add_pair(place[v], place[u], prices)
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
