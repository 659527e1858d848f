"""Exact searches equal brute force, and the model has the prices of the run."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import numpy as np
import pytest
import scipy.optimize
from brute_force import brute_force
from recorded_graphs import record_graph

from spmdsim import Tensor, ops, search
from spmdsim.auto_parallel.costs.choice_model import ChoiceModel
from spmdsim.auto_parallel.costs.evaluate import evaluate_choice
from spmdsim.auto_parallel.costs.peak_memory import peak_memory
from spmdsim.auto_parallel.costs.search_settings import Settings
from spmdsim.auto_parallel.frontier import frontier
from spmdsim.auto_parallel.programs.graph import Graph
from spmdsim.auto_parallel.programs.networks import build_program
from spmdsim.auto_parallel.solvers.choice_problem import ChoiceProblem
from spmdsim.auto_parallel.solvers.elimination import TooWideError, eliminate, improve
from spmdsim.auto_parallel.solvers.integer import (
    DoesNotFitError,
    find_lightest,
    smallest_memory,
    solve_integer,
)
from spmdsim.core import Mesh
from spmdsim.cost import Machine
from spmdsim.errors import InputError


def random_problem(seed: int) -> ChoiceProblem:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 6))
    problem = ChoiceProblem()
    for _ in range(count):
        states = int(rng.integers(1, 5))
        problem.add_variable(rng.integers(0, 5, states), rng.integers(0, 9, states))
    for i, j in itertools.combinations(range(count), 2):
        if rng.random() < 0.6:
            shape = (problem.sizes[i], problem.sizes[j])
            memory = rng.integers(0, 5, shape) if rng.random() < 0.5 else None
            problem.add_pair(i, j, rng.integers(0, 5, shape), memory)
    return with_hubs(problem, rng) if seed % 2 else problem


def with_hubs(problem: ChoiceProblem, rng: np.random.Generator) -> ChoiceProblem:
    """Add up to three variables that pair with others, but not with each other; return the problem."""
    others = range(len(problem))
    for _ in range(int(rng.integers(1, 4))):
        hub = problem.add_variable(rng.integers(0, 4, 3), hub=True)
        for v in others:
            if rng.random() < 0.7:
                problem.add_pair(v, hub, rng.integers(0, 5, (problem.sizes[v], 3)))
    return problem


@pytest.mark.parametrize("seed", range(40))
def test_random_problems_equal_brute_force(seed: int) -> None:
    problem = random_problem(seed)
    best = brute_force(problem)
    assert eliminate(problem).seconds == best.seconds == solve_integer(problem).seconds
    assert improve(problem, (0,) * len(problem)).seconds >= best.seconds
    assert smallest_memory(problem) == brute_force(problem.weighted(1.0, 0.0)).memory


@pytest.mark.parametrize("seed", range(16))
def test_memory_limits_equal_brute_force(seed: int) -> None:
    problem = random_problem(seed)
    least = smallest_memory(problem)
    for limit in (least, least + 3, least + 10):
        solution = solve_integer(problem, limit)
        assert solution.memory <= limit
        assert solution.seconds == brute_force(problem, limit).seconds
    with pytest.raises(DoesNotFitError, match=f"smallest limit that can be met is {least:,.0f}"):
        solve_integer(problem, least - 1)


@pytest.mark.parametrize("seed", range(16))
def test_the_lightest_of_equally_fast_assignments_is_found(seed: int) -> None:
    """Versions of the solver find different ones of equally fast assignments first."""
    problem = random_problem(seed)
    limit = smallest_memory(problem) + 5
    assignments = itertools.product(*map(range, problem.sizes))
    pairs = [(problem.price(states), problem.bytes_of(states)) for states in assignments]
    seconds, memory = min(pair for pair in pairs if pair[1] <= limit)
    solution = find_lightest(problem, solve_integer(problem, limit))
    assert (solution.seconds, solution.memory) == (seconds, memory)


def test_the_solver_gets_more_time_until_it_finds_an_assignment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A solver on a busy machine may find nothing within its time limit. Then the limit is doubled."""
    original_milp, time_limits = scipy.optimize.milp, []

    def milp(*args: Any, options: dict[str, float], **keywords: Any) -> Any:
        time_limits.append(options["time_limit"])
        if len(time_limits) < 3:
            return scipy.optimize.OptimizeResult(x=None, status=1)
        return original_milp(*args, options=options, **keywords)

    monkeypatch.setattr(scipy.optimize, "milp", milp)
    problem = random_problem(0)
    assert solve_integer(problem, seconds_allowed=15).seconds == brute_force(problem).seconds
    assert time_limits == [15, 30, 60]


#: Weights of chains, rows, mesh, and operations per second. The assignments that store least have not the lowest peak.
TIGHT = [
    ((64, 256), 64, Mesh((4,), ("a",)), 1e7),
    ((256, 16, 64), 8, Mesh((2,), ("a",)), 1e11),
    ((16, 64), 512, Mesh((2, 2), ("a", "b")), 1e8),
]


@pytest.mark.parametrize(
    ("widths", "rows", "mesh", "flops", "most_assignments"),
    [*((*case, 1000) for case in TIGHT), (*TIGHT[0], 0), (*TIGHT[1], 0)],
)
def test_limits_of_the_peak_equal_brute_force(
    widths: tuple[int, ...],
    rows: int,
    mesh: Mesh,
    flops: float,
    most_assignments: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The search meets any possible limit. Up to `most_assignments` assignments, it is also the fastest."""
    monkeypatch.setattr("spmdsim.auto_parallel.optimum.FEW_ASSIGNMENTS", most_assignments)
    graph = build_program("chain", sizes=widths, batch=rows, training=True)
    settings = Settings(machine=Machine("m", 1e-6, 1e-10, flops=flops), partial=True, sharded_parameters=True)
    model = ChoiceModel(graph, mesh, settings)
    hubs = set(model.problem.hubs)
    assignments = itertools.product(
        *(range(1 if v in hubs else n) for v, n in enumerate(model.problem.sizes))
    )
    choices = [model.choice(states) for states in assignments]
    reports = [
        (peak_memory(choice, settings).peak, evaluate_choice(choice, settings, model.moves).seconds)
        for choice in choices
    ]
    peaks = sorted({peak for peak, _ in reports})
    assert 10 < len(reports) <= 1000 and len(peaks) > 5
    with pytest.raises(DoesNotFitError):
        search(graph, mesh, settings=settings, memory=peaks[0] - 1)
    for limit in (peaks[0], peaks[1], peaks[len(peaks) // 2]):
        result = search(graph, mesh, settings=settings, memory=limit)
        best = min(seconds for peak, seconds in reports if peak <= limit)
        assert result.memory.peak <= limit
        assert result.seconds >= best * (1 - 1e-6)
        assert most_assignments == 0 or result.seconds <= best * (1 + 1e-4)


@pytest.mark.parametrize(
    ("widths", "rows", "mesh", "flops"), [*TIGHT[1:], ((32, 32, 64), 16, Mesh((4,), ("a",)), 1e9)]
)
def test_the_frontier_equals_brute_force(
    widths: tuple[int, ...], rows: int, mesh: Mesh, flops: float
) -> None:
    """Each point is the fastest choice that stores at most 96 % of the bytes of the point before."""
    graph = build_program("chain", sizes=widths, batch=rows, training=True)
    settings = Settings(machine=Machine("m", 1e-6, 1e-10, flops=flops), partial=True, sharded_parameters=True)
    model = ChoiceModel(graph, mesh, settings)
    problem, hubs = model.problem, set(model.problem.hubs)
    assignments = itertools.product(*(range(1 if v in hubs else n) for v, n in enumerate(problem.sizes)))
    solutions = []
    for states in map(problem.with_best_hubs, assignments):
        peak = peak_memory(model.choice(states), settings, model.moves).peak
        solutions.append((problem.price(states), problem.bytes_of(states), peak))
    assert len(solutions) > 500
    expected, limit = [], math.inf
    while below := [solution for solution in solutions if solution[1] <= limit]:
        seconds, stored, peak = min(below)
        limit = 0.96 * stored
        if not expected or peak < expected[-1][1]:
            expected.append((pytest.approx(seconds), peak))
    assert [(point.seconds, point.memory) for point in frontier(graph, mesh, settings, most=100)] == expected


def test_ties_go_to_the_first_state() -> None:
    assert eliminate(ChoiceProblem([np.zeros(4)])).states == (0,)


def test_a_wide_table_is_refused() -> None:
    problem = ChoiceProblem([np.zeros(4) for _ in range(6)])
    rng = np.random.default_rng(0)
    for i, j in itertools.combinations(range(6), 2):
        problem.add_pair(i, j, rng.random((4, 4)))
    with pytest.raises(TooWideError, match="integer programme"):
        eliminate(problem, largest=100)


def test_empty_variables_and_too_many_combinations_are_refused() -> None:
    with pytest.raises(InputError, match="at least one state"):
        ChoiceProblem().add_variable(np.array([]))
    with pytest.raises(InputError, match="too many"):
        brute_force(ChoiceProblem([np.zeros(100)] * 5))


PROGRAMS: dict[str, tuple[str, dict[str, Any]]] = {
    "mlp": ("mlp", {"layers": 4, "hidden": 256, "batch": 64}),
    "wide mlp": ("mlp", {"layers": 3, "hidden": 1024, "batch": 32}),
    "deep batch": ("mlp", {"layers": 3, "hidden": 64, "batch": 8192}),
    "chain": ("chain", {"sizes": (512, 128, 1024, 256), "batch": 128, "training": True}),
    "gpt": ("gpt", {"layers": 1, "hidden": 256, "batch": 8, "seq": 64, "heads": 4}),
    "bert": ("bert", {"layers": 1, "hidden": 256, "batch": 8, "seq": 64}),
    "moe": ("moe", {"layers": 1, "hidden": 64, "batch": 64, "seq": 16}),
}


def build(name: str) -> Graph:
    program, sizes = PROGRAMS[name]
    return build_program(program, **sizes)


@pytest.mark.parametrize(
    ("name", "mesh", "machine", "sharded"),
    [
        *((name, Mesh((8,), ("a",)), Machine.laptop(), False) for name in PROGRAMS),
        *(
            (name, Mesh((2, 4), ("a", "b")), Machine.accelerators(), True)
            for name in PROGRAMS
            if name not in ("gpt", "bert")
        ),
    ],
    ids=str,
)
def test_the_price_of_the_optimum_equals_the_price_of_the_run(
    name: str, mesh: Mesh, machine: Machine, sharded: bool
) -> None:
    """The price adds up the redistributions of the program, with shared messages."""
    settings = Settings(machine=machine, partial=True, sharded_parameters=sharded)
    model = ChoiceModel(build(name), mesh, settings)
    solution = eliminate(model.problem)
    total = evaluate_choice(model.choice(solution.states), settings, model.moves)
    assert total.seconds == pytest.approx(solution.seconds, rel=1e-7)


def test_gradients_that_share_a_message_pay_its_latency_once() -> None:
    """Under data parallelism, six gradients share an all_reduce and save the latency of five."""
    graph, mesh = build_program("mlp", layers=3, hidden=64, batch=8192), Mesh((8,), ("dp",))
    results = {merge: search(graph, mesh, settings=Settings(merge=merge)) for merge in (False, True)}
    assert results[False].collectives == {"all_reduce": 6} and results[True].collectives == {"all_reduce": 1}
    assert results[True].nbytes == results[False].nbytes
    machine = Machine.laptop()
    sizes = [4 * n * 7 / 4 for n in (64 * 64, 64)] * 3
    separate_seconds, shared_seconds = (
        sum(machine.seconds("all_reduce", 8, n) for n in sizes),
        machine.seconds("all_reduce", 8, sum(sizes)),
    )
    assert results[False].seconds - results[True].seconds == pytest.approx(separate_seconds - shared_seconds)
    assert separate_seconds - shared_seconds > 4 * machine.seconds("all_reduce", 8, 0)


def test_shared_messages_can_change_the_optimum() -> None:
    """The latency is high: data parallelism is worth one all_reduce, but not four."""
    graph = build_program("chain", sizes=[32] * 5, batch=64, training=True)
    machine = Machine("slow starts", alpha=2e-4, beta=1e-10, flops=1e9)
    mesh = Mesh((4,), ("a",))
    shared, separate = (
        search(graph, mesh, settings=Settings(machine=machine, merge=m)) for m in (True, False)
    )
    assert shared.collectives == {"all_reduce": 1}
    assert [str(s) for s in shared.choice.strategies] == [".0:a"] * 4
    assert [str(s) for s in separate.choice.strategies] != [".0:a"] * 4
    assert shared.seconds < separate.seconds


@pytest.mark.parametrize(("layers", "width", "flops"), [(2, 509, 22e9), (2, 509, 24e9), (3, 127, 3e9)])
def test_replicas_help_to_reduce_gradients_of_a_shared_message(layers: int, width: int, flops: float) -> None:
    """Ranks along the axis that splits nothing take part in the reduction of all gradients."""
    # Only the batch divides evenly, and only along one axis.
    graph = build_program("chain", sizes=[width] * (layers + 1), batch=4, training=True)
    machine = Machine("m", alpha=1e-6, beta=1e-10, flops=flops)
    settings = Settings(machine=machine)
    model = ChoiceModel(graph, Mesh((4, 2), ("a", "b")), settings)
    solution = eliminate(model.problem)
    states_by_variable = [
        range(n) if v not in set(model.problem.hubs) else (0,) for v, n in enumerate(model.problem.sizes)
    ]
    reports = [
        evaluate_choice(model.choice(states), settings, model.moves)
        for states in itertools.product(*states_by_variable)
    ]
    assert any(len(message.steps) == 2 for report in reports for message in report.messages)
    report = evaluate_choice(model.choice(solution.states), settings, model.moves)
    assert report.seconds == pytest.approx(solution.seconds, rel=2e-3)
    assert report.seconds <= (1 + 2e-3) * min(report.seconds for report in reports)


def test_gradients_fill_buckets_in_the_search_as_in_the_run() -> None:
    """Two weights of 16 MiB, or seven of 4 MiB, fill a bucket of 25 MiB."""
    graph, mesh = build_program("mlp", layers=10, hidden=2048, batch=65536, bias=False), Mesh((8,), ("dp",))
    result = search(graph, mesh, settings=Settings())
    assert result.collectives["all_reduce"] == 5
    small = search(
        build_program("mlp", layers=10, hidden=1024, batch=65536, bias=False), mesh, settings=Settings()
    )
    assert [len(message.moves) for message in small.evaluation.messages] == [7, 3]


def test_the_tutorials_configured_cuts_are_kept() -> None:
    result = search(build_program("tutorial"), 8)
    cuts = {
        operator.name: [layout.cuts for layout in operator.bound.input_layouts(strategy)]
        for operator, strategy in zip(result.graph.operators, result.choice.strategies)
    }
    assert cuts["matmul1"] == [(2, 4), (4, 1)]
    assert cuts["relu1"] == [(4, 1)]
    assert cuts["matmul2"] == [(1, 8), (8, 1)]
    assert cuts["relu2"] == [(8, 1)]


def graph_with_unread_result(sizes: tuple[int, int, int]) -> Graph:
    """Return a graph in which one of two readers of a result has an unread result and no gradient."""
    a, b, c = sizes

    def program(x: Tensor, first: Tensor, idle: Tensor, idle_too: Tensor, last: Tensor) -> Tensor:
        x = ops.matmul(x, first)
        ops.matmul(ops.matmul(x, idle), idle_too)
        return ops.matmul(x, last)

    return record_graph(
        program, {"x": (a, b)}, {"first": (b, c), "idle": (c, b), "idle_too": (b, a), "last": (c, a)}
    )


@pytest.mark.parametrize("mesh", [Mesh((4,), ("a",)), Mesh((2, 2), ("a", "b")), Mesh((3,), ("a",))], ids=str)
@pytest.mark.parametrize("sizes", [(64, 1024, 64), (4096, 16, 32), (4, 8, 5), (30, 7, 9)])
def test_operators_without_readers_get_no_gradients(mesh: Mesh, sizes: tuple[int, int, int]) -> None:
    """The price of the search equals the report, for even and uneven sizes, and no choice has a lower one."""
    graph = graph_with_unread_result(sizes)
    settings = Settings(even=all(size % 4 == 0 for size in sizes) and mesh.size == 4)
    model = ChoiceModel(graph, mesh, settings)
    result = search(graph, mesh, settings=settings)
    # A message of several gradients is rounded to whole elements once, not once per gradient.
    assert eliminate(model.problem).seconds == pytest.approx(result.seconds, rel=1e-6)
    assert graph.reached == {0, 3}
    idle = [
        move for move, _ in result.evaluation.moves if move.phase != "forward" and "idle" in move.value.name
    ]
    assert not idle
    rng = random.Random(str(sizes))
    for _ in range(60):
        states = [rng.randrange(count) for count in model.problem.sizes]
        choice = model.choice(states)
        assert evaluate_choice(choice, settings, model.moves).seconds >= result.seconds * (1 - 1e-6)


def test_rank_counts_that_divide_no_dim_get_uneven_shards() -> None:
    result = search(
        build_program("chain", sizes=(8, 4, 8), batch=4, training=True),
        3,
        machine=Machine("slow", 1e-9, 1e-12, flops=1e3),
    )
    assert any(strategy.splits for strategy in result.choice.strategies)
    with pytest.raises(InputError, match="7 ranks"):
        search(build_program("chain", sizes=(4, 4), batch=4), 7)
