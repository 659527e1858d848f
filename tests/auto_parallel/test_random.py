"""The exact search equals brute force for random small programs, and its result runs as predicted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from brute_force import brute_force
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spmdsim import ops, search
from spmdsim.auto_parallel.costs.choice_model import ChoiceModel
from spmdsim.auto_parallel.costs.evaluate import evaluate_choice
from spmdsim.auto_parallel.costs.search_settings import Settings
from spmdsim.auto_parallel.execute import create_arguments, prove
from spmdsim.auto_parallel.programs.graph import Graph
from spmdsim.auto_parallel.programs.record_program import record_program
from spmdsim.auto_parallel.solvers.elimination import TooWideError, eliminate, improve
from spmdsim.auto_parallel.solvers.integer import smallest_memory, solve_integer
from spmdsim.core import Mesh
from spmdsim.cost import Machine
from spmdsim.worlds import LockStep

#: Shapes of the weights. The square weights may be used several times.
WIDTH = 12
SHAPES = {"u": (WIDTH, WIDTH), "v": (WIDTH, WIDTH), "w": (WIDTH, 8)}
MACHINES = (
    Machine.laptop(),
    Machine("slow ranks", alpha=1e-8, beta=1e-11, flops=1e7, beta_memory=1e-12),
    Machine("slow starts", alpha=1e-5, beta=1e-10, flops=1e8),
)
#: A line of a program: the operation, and the numbers of two earlier results.
LINES = st.tuples(
    st.sampled_from(("relu", "add", "times u", "times v", "halves", "fold", "turn")),
    st.integers(0, 7),
    st.integers(0, 7),
)


class RandomProgram:
    """A program of random lines on tensors of shape (rows, WIDTH).

    Lines have residuals, shared weights, several readers, reshape and concat.
    """

    __name__ = "random program"

    def __init__(self, lines: Sequence[tuple[str, int, int]], tail: bool) -> None:
        self.lines, self.tail = lines, tail

    def __call__(self, x: Any, u: Any, v: Any, w: Any) -> Any:
        results = [x]
        for line, first, second in self.lines:
            a, b = results[-1 - first % len(results)], results[-1 - second % len(results)]
            results.append(self._line(line, a, b, u, v))
        last = ops.matmul(results[-1], w) if self.tail else results[-1]
        return ops.sum(ops.multiply(last, last))

    @staticmethod
    def _line(line: str, a: Any, b: Any, u: Any, v: Any) -> Any:
        """Return the result of a line on tensors `a` and `b`."""

        rows = a.shape[0]
        if line == "relu":
            return ops.relu(a)
        if line == "add":
            return ops.add(a, b)
        if line.startswith("times"):
            return ops.matmul(a, u if line.endswith("u") else v)
        if line == "halves":
            both_halves = ops.concat([a, b], 0)
            return ops.add(ops.slice_(both_halves, (0, 0), (rows, WIDTH)), a)
        if line == "fold":
            return ops.reshape(ops.relu(ops.reshape(a, (rows, 3, WIDTH // 3))), (rows, WIDTH))
        return ops.transpose(ops.exp(ops.transpose(ops.multiply(a, 0.1), (1, 0))), (1, 0))


def graph_of(program: RandomProgram, mesh: Mesh, rows: int) -> Graph:
    return record_program(program, mesh, {"x": (rows, WIDTH)}, SHAPES)


PROGRAMS = st.builds(RandomProgram, st.lists(LINES, min_size=1, max_size=4), st.booleans())
SMALL = settings(
    max_examples=12,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def model_of(program: RandomProgram, mesh: Mesh, rows: int, machine: Machine, **options: Any) -> ChoiceModel:
    return ChoiceModel(graph_of(program, mesh, rows), mesh, Settings(machine=machine, **options))


def best_of(model: ChoiceModel) -> float:
    """Return the optimum by brute force, or by the integer programme if it has over 300,000 assignments."""
    sizes = [n for v, n in enumerate(model.problem.sizes) if v not in set(model.problem.hubs)]
    if math.prod(sizes) <= 300_000:
        return brute_force(model.problem).seconds
    return solve_integer(model.problem).seconds


@SMALL
@given(PROGRAMS, st.sampled_from([(2,), (4,), (2, 2)]), st.sampled_from([4, 8, 6]), st.sampled_from(MACHINES))
def test_the_optimum_equals_brute_force(
    program: RandomProgram, shape: tuple[int, ...], rows: int, machine: Machine
) -> None:
    mesh = Mesh(shape, ("a", "b")[: len(shape)])
    model = model_of(program, mesh, rows, machine)
    try:
        solution = eliminate(model.problem)
    except TooWideError:
        solution = solve_integer(model.problem)
    assert solution.seconds == pytest.approx(best_of(model), rel=1e-6)
    start = (0,) * len(model.problem)
    assert improve(model.problem, start).seconds >= solution.seconds * (1 - 1e-9)


@SMALL
@given(PROGRAMS, st.sampled_from([4, 8]), st.floats(0.0, 1.0))
def test_the_optimum_under_a_memory_limit_equals_brute_force(
    program: RandomProgram, rows: int, share: float
) -> None:
    """Parameters may be sharded. Brute force is compared up to 300,000 assignments."""
    mesh = Mesh((2,), ("a",))
    model = model_of(program, mesh, rows, MACHINES[0], sharded_parameters=True)
    sizes = [n for v, n in enumerate(model.problem.sizes) if v not in set(model.problem.hubs)]
    least, free = smallest_memory(model.problem), eliminate(model.problem)
    limit = least + share * (free.memory - least)
    solution = solve_integer(model.problem, limit)
    assert solution.memory <= limit and solution.seconds >= free.seconds * (1 - 1e-9)
    if math.prod(sizes) <= 300_000:
        assert solution.seconds == pytest.approx(brute_force(model.problem, limit).seconds, rel=1e-6)


@SMALL
@given(PROGRAMS, st.sampled_from([(4,), (2, 3)]), st.booleans(), st.sampled_from(MACHINES))
def test_the_price_equals_the_price_of_the_run(
    program: RandomProgram, shape: tuple[int, ...], sharded: bool, machine: Machine
) -> None:
    """The run makes the moves that the search counts."""
    mesh = Mesh(shape, ("a", "b")[: len(shape)])
    model = model_of(program, mesh, 12, machine, sharded_parameters=sharded)
    try:
        solution = eliminate(model.problem)
    except TooWideError:
        return
    total = evaluate_choice(model.choice(solution.states), model.settings, model.moves)
    assert total.seconds <= solution.seconds * (1 + 1e-9)
    assert total.seconds == pytest.approx(solution.seconds, rel=0.02)


@settings(SMALL, max_examples=10)
@given(PROGRAMS, st.sampled_from([2, 4, 6]), st.sampled_from(MACHINES), st.booleans())
def test_the_result_runs_as_predicted(
    program: RandomProgram, ranks: int, machine: Machine, limited: bool
) -> None:
    """Numbers are right on every rank, and bytes are as predicted for every operator, in lock step."""
    inputs = {"x": (12, WIDTH)}
    result = search(program, ranks, inputs=inputs, parameters=SHAPES, machine=machine)
    if limited:
        result = search(
            program,
            ranks,
            inputs=inputs,
            parameters=SHAPES,
            machine=machine,
            memory=0.9 * result.memory.peak + 4000,
        )
    proof = prove(program, result, LockStep(ranks), create_arguments({**inputs, **SHAPES}))
    assert proof.holds, str(proof)
