"""Checkers of lab 8, "Find the strategy"."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from spmdsim.arrays.ops import matmul, relu
from spmdsim.auto_parallel.search import search
from spmdsim.auto_parallel.solvers.choice_problem import ChoiceProblem
from spmdsim.auto_parallel.solvers.elimination import eliminate
from spmdsim.core import Layout, Mesh
from spmdsim.labs.judging import (
    RANKS,
    Mistake,
    expect,
    expect_bytes,
    expect_equal,
    expect_several,
    draw_numbers,
    tensor,
    traced,
)
from spmdsim.worlds.trace import Trace

MESH = Mesh((RANKS,), ("r",))
LONG_CHAIN = 100
"""Number of operators of the longest chain; only dynamic programming solves it in time."""


def _least(costs: Sequence[Sequence[float]], moves: Sequence[Any]) -> float:
    """Return the fewest seconds that a chain of operators can take, by the library's solver.

    Each operator takes one of its strategies. The result is the seconds of these strategies plus those of the moves
    between consecutive operators, minimised over all choices of strategies.
    """
    problem = ChoiceProblem()
    for row in costs:
        problem.add_variable(np.array(row, float))
    for i, move in enumerate(moves):
        problem.add_pair(i, i + 1, np.array(move, float))
    return float(eliminate(problem).seconds)


def _chain(length: int, states: int, seed: int) -> tuple[list[list[float]], list[Any]]:
    """Return random costs and moves of ``length`` operators with ``states`` strategies each.

    Both are arguments of ``_least``.
    """
    draw = np.random.default_rng(seed)
    costs = draw.integers(1, 20, (length, states)).astype(float).tolist()
    return costs, draw.integers(0, 20, (length - 1, states, states)).astype(float).tolist()


LONG_CALL = 0.3
"""Seconds from which on a call has tried all combinations; dynamic programming takes a thousandth of it."""


def _refuse_enumeration(answer: Callable[..., Any]) -> None:
    """Raise Mistake if an answer tries all combinations of strategies.

    Call the answer with chains of 8, 9, … 25 operators with two strategies each, so each chain has twice as many
    combinations as the one before. A chain takes too long if three calls in a row take over :data:`LONG_CALL` seconds;
    a single long call may be the fault of other programs. This comes before a chain that enumeration would never end.
    """
    for length in range(8, 26):
        chain = _chain(length, 2, seed=length)
        if all(_call_seconds(answer, chain) > LONG_CALL for _ in range(3)):
            raise Mistake(
                f"it tries all combinations: each operator more takes at least twice as long, and {LONG_CHAIN} operators "
                "would not end; keep, for each strategy of an operator, only the cheapest path to it"
            )


def _call_seconds(answer: Callable[..., Any], chain: tuple[list[list[float]], list[Any]]) -> float:
    """Return the seconds of a call of the student's ``cheapest`` with a chain."""
    start = perf_counter()
    answer(*chain)
    return perf_counter() - start


def cheapest(answer: Callable[..., Any]) -> Iterator[None]:
    """Check the student's ``cheapest(costs, moves)``: the best strategies for a chain of operators.

    ``costs[i][s]`` are the seconds of operator ``i`` with strategy ``s``; ``moves[i][s][t]`` those between operator ``i``
    with ``s`` and the next one with ``t``. The answer is ``(seconds, strategies)`` with a strategy per operator. The
    seconds must be the sum for these strategies, and the least possible sum; any strategies with this sum are right.
    Yield None once per point, after each of these groups:

    * chains of two and three operators;
    * chains of four operators;
    * a chain of one operator;
    * a chain of :data:`LONG_CHAIN` (100) operators, which enumeration cannot solve.

    Args:
        answer: the student's function.

    Raises:
        Mistake: If an answer is wrong.
    """
    trap = [[1.0, 2.0], [1.0, 2.0], [2.0, 1.0]], [[[9.0, 9.0], [9.0, 0.0]], [[9.0, 9.0], [9.0, 0.0]]]
    pair = [[1.0, 3.0], [1.0, 2.0]], [[[5.0, 0.0], [0.0, 0.0]]]
    chains = (
        [pair, trap],
        [_chain(4, 3, seed) for seed in range(5)],
        [_chain(1, 4, 7)],
        [_chain(LONG_CHAIN, 6, 8)],
    )
    for group in chains:
        if len(group[0][0]) == LONG_CHAIN:
            _refuse_enumeration(answer)
        for costs, moves in group:
            value = answer(costs, moves)
            length = f"a chain of {len(costs)} operator{'s' * (len(costs) > 1)}"
            is_pair = isinstance(value, tuple | list) and len(value) == 2 and len(value[1]) == len(costs)
            expect(is_pair, f"for {length} it must give the seconds and a list of {len(costs)} strategies")
            seconds, states = value
            total = sum(row[s] for row, s in zip(costs, states))
            total += sum(move[s][t] for move, s, t in zip(moves, states, states[1:]))
            words = f"for {length} it says {seconds:g} seconds, but its strategies take {total:g}"
            expect(math.isclose(seconds, total), words)
            least = _least(costs, moves)
            words = f"for {length} its strategies take {total:g} seconds, but {least:g} would do"
            expect(math.isclose(total, least), words)
        yield


def _run_step(layouts: Sequence[Layout], batch: int, width: int) -> Trace:
    """Run a forward and a backward pass of ``relu(x W1) W2`` in three layouts; return the trace.

    The pending reductions of the result are finished, and its sum is differentiated by W1 and W2. The elements are
    test numbers.

    Args:
        layouts: the layouts of x, W1 and W2.
        batch: the number of rows of x.
        width: the number of columns of x, and of rows and columns of W1 and W2.
    """
    arrays = draw_numbers(batch, width), draw_numbers(width, width, seed=2), draw_numbers(width, width, seed=3)
    x, w1, w2 = (tensor(array, layout) for array, layout in zip(arrays, layouts))
    w1.requires_grad = w2.requires_grad = True

    def step() -> None:
        y = matmul(relu(matmul(x, w1)), w2)
        y = y.to(y.layout.reduced)
        y.sum().backward()

    return traced(step)[1]


def layouts(answer: Callable[..., Any]) -> Iterator[None]:
    """Check the student's ``layouts(mesh, batch, width)``: each rank's work, then the bytes.

    The answer has the layouts of x, W1 and W2 of the network ``relu(x W1) W2``. There are two cases: a large batch and
    a large width. Yield None once per point, after each of these checks:

    * in both cases, rank 0 does at most an eighth of the work;
    * for the large batch, the busiest rank receives no more bytes than in data parallelism and in tensor parallelism;
    * for the large width, the busiest rank receives no more bytes than in data parallelism and in tensor parallelism.

    Args:
        answer: the student's function.

    Raises:
        Mistake: If a check fails.
    """
    replicated = MESH(None, None)
    candidates = [(MESH("r", None), replicated, replicated), (replicated, MESH(None, "r"), MESH("r", None))]
    cases = ((256, 16, "a batch of 256 and a width of 16"), (16, 64, "a batch of 16 and a width of 64"))
    traces = []
    for batch, width, words in cases:
        student_layouts = answer(MESH, batch, width)
        expect_several(student_layouts, 3, "three layouts", Layout)
        trace = _run_step(student_layouts, batch, width)
        products = [event.local_shapes for event in trace.operators if event.name == "matmul"]
        work = sum(x[0] * x[1] * w[1] for x, w, *_ in products)
        eighth = 2 * batch * width * width // RANKS
        expect(work <= eighth, f"with {words} a rank does {work} products, but an eighth is {eighth}")
        least = min(_run_step(layouts, batch, width).planned() for layouts in candidates)
        traces.append((trace.planned(), least, words))
    yield
    for nbytes, least, words in traces:
        expect_bytes(nbytes, least, f"a step with {words}")
        yield


def turning_point(answer: Callable[..., Any]) -> Iterator[None]:
    """Check the student's ``turning_point(mesh, hidden, batches)``: the first split batch.

    It is the first of the batch sizes ``batches`` for which the search splits the batch dim of the first layer, or None
    if it splits none. Yield None once per point: after a list of batches with a turning point, and after one without.

    Args:
        answer: the student's function.

    Raises:
        Mistake: If an answer is wrong.
    """
    for hidden, batches in ((64, (48, 80, 112, 144, 192, 256, 1024)), (64, (16, 32))):
        strategies = (
            search("mlp", MESH, layers=2, hidden=hidden, batch=batch).strategy("fc0") for batch in batches
        )
        # ".0:r": axis r splits dim 0 of the first operand, which is the batch.
        split_batches = (batch for batch, strategy in zip(batches, strategies) if str(strategy) == ".0:r")
        call = f"turning_point(mesh, {hidden}, {batches})"
        expect_equal(answer(MESH, hidden, batches), next(split_batches, None), call)
        yield
