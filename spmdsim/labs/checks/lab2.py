"""Checkers of lab 2, "Collectives and what they cost"."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from spmdsim.arrays.ops import matmul
from spmdsim.collectives import Facts, facts_of, from_function, make_schedule, schedule_of
from spmdsim.core import Mesh
from spmdsim.errors import ScheduleError, many
from spmdsim.labs.judging import (
    RANKS,
    Mistake,
    algorithm_of,
    expect,
    expect_answer,
    expect_collectives,
    draw_numbers,
    tensor,
    to_python,
)


def _verify_algorithm(answer: Callable[..., Any], collective: str, sizes: Iterable[int]) -> dict[int, Facts]:
    """Verify an algorithm for each number of ranks; return its facts by number of ranks.

    The facts have its rounds and bytes, and their lower bounds. It stops at the first number of ranks for which the
    algorithm is wrong.

    Args:
        answer: the student's generator function of rank and size.
        collective: name of the collective.
        sizes: numbers of ranks.

    Raises:
        Mistake: If the algorithm is wrong for one of them.
        NotImplementedError: If the student has written no algorithm.
    """
    facts = {}
    for size in sizes:
        try:
            facts[size] = facts_of(make_schedule(from_function(algorithm_of(answer), collective), size))
        except ScheduleError as error:
            if "NotImplementedError" in error.message:
                raise NotImplementedError from None
            raise Mistake(f"on {many(size, 'rank')}: {error.message}") from None
    return facts


def _expect_rounds(facts: dict[int, Facts], sizes: Iterable[int]) -> None:
    """Raise Mistake if an algorithm takes more rounds than the bound for any number of ranks."""
    for size in sizes:
        bound, steps = facts[size].bound.steps, facts[size].steps
        expect(steps <= bound, f"on {size} ranks it takes {steps} rounds, but {bound} would do")


def broadcast(answer: Callable[..., Any]) -> Iterator[None]:
    """Check the student's algorithm of a broadcast: its results for any data, then its rounds.

    Yield None once per point, after each of these checks:

    * the results on 2 to 9 ranks are right;
    * the rounds on 2, 4 and 8 ranks do not exceed the lower bound;
    * the rounds on the other numbers of ranks do not exceed the lower bound.

    Args:
        answer: the student's generator function of rank and size.

    Raises:
        Mistake: If the algorithm is wrong or takes more rounds.
        NotImplementedError: If the student has written no algorithm.
    """
    facts = _verify_algorithm(answer, "broadcast", range(2, 10))
    yield
    _expect_rounds(facts, (2, 4, 8))
    yield
    _expect_rounds(facts, (3, 5, 6, 7, 9))
    yield


def all_reduce(answer: Callable[..., Any]) -> Iterator[None]:
    """Check the student's algorithm of an all_reduce: its results for any data, then its bytes.

    The bytes of the critical path may not exceed the lower bound. They are the sum over the rounds of the most bytes
    that one rank sends or receives. Yield None once after the results on 2 to 8 ranks, and twice after the bytes, which
    earn two points.

    Args:
        answer: the student's generator function of rank and size.

    Raises:
        Mistake: If the algorithm is wrong or sends more.
        NotImplementedError: If the student has written no algorithm.
    """
    by_size = _verify_algorithm(answer, "all_reduce", range(2, 9))
    yield
    for size, facts in by_size.items():
        sent, bound = float(facts.beta), float(facts.bound.beta)
        words = f"on {many(size, 'rank')} {sent:.3g} vectors are sent one after the other, but {bound:.3g} would do"
        expect(facts.beta <= facts.bound.beta, words)
    yield
    yield


def ring_seconds(answer: Callable[..., Any]) -> Iterator[None]:
    """Check the student's ``ring_seconds(size, nbytes, alpha, beta)`` of an all_reduce.

    The algorithm is a ring. The right answers follow from the rounds and bytes of the library's ring; a relative error
    of 1e-9 is accepted. Yield None once per point: after cases with alpha or beta alone, and after cases with both.

    Args:
        answer: the student's function.

    Raises:
        Mistake: If an answer is wrong.
    """
    large = ((4, 1 << 20, 0.0, 1e-9), (8, 1 << 20, 1e-6, 0.0))
    for cases in (large, ((5, 1000, 2e-6, 1e-9), (2, 64, 1e-6, 1e-8))):
        for size, nbytes, alpha, beta in cases:
            facts = facts_of(schedule_of("all_reduce", "ring", size))
            wanted = facts.steps * alpha + float(facts.beta) * nbytes * beta
            value = to_python(answer(size, nbytes, alpha, beta))
            right = isinstance(value, int | float) and math.isclose(value, wanted, rel_tol=1e-9)
            value_text = f"{value:.4g}" if isinstance(value, int | float) else repr(value)
            call = f"ring_seconds({size}, {nbytes}, alpha={alpha:g}, beta={beta:g})"
            expect(right, f"{call} gives {value_text}, but it is {wanted:.4g}")
        yield


def two_halves(answer: Callable[..., Any]) -> Iterator[None]:
    """Check the student's ``two_halves(y)``, an all_reduce in two collectives.

    ``y`` is a product with pending sums. Yield None once per point: after value and layout, which must be replicated,
    and after the collectives, which must be a reduce_scatter and an all_gather.

    Args:
        answer: the student's function.

    Raises:
        Mistake: If a check fails.
    """
    mesh = Mesh((RANKS,), ("r",))
    a, b = draw_numbers(16, 24), draw_numbers(24, 8, seed=2)
    y = matmul(tensor(a, mesh(None, "r")), tensor(b, mesh("r", None)))
    trace = expect_answer(answer, [y], np.matmul(a, b), mesh(None, None), "two_halves(y)")
    yield
    expect_collectives(trace, {"reduce_scatter": 1, "all_gather": 1}, "two_halves(y)")
    yield
