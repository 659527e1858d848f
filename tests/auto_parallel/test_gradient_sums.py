"""The search counts gradients that readers contribute in equal layouts as one move, for any number of readers."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from recorded_graphs import record_graph

from spmdsim import Tensor, ops, search
from spmdsim.auto_parallel.costs.choice_model import ChoiceModel
from spmdsim.auto_parallel.costs.evaluate import evaluate_choice
from spmdsim.auto_parallel.costs.peak_memory import peak_memory
from spmdsim.auto_parallel.costs.search_settings import Settings
from spmdsim.auto_parallel.programs.graph import Graph
from spmdsim.auto_parallel.programs.networks import build_program
from spmdsim.auto_parallel.solvers.elimination import eliminate
from spmdsim.auto_parallel.solvers.integer import solve_integer
from spmdsim.auto_parallel.strategy_choice import StrategyChoice, mesh_strategies
from spmdsim.core import Mesh
from spmdsim.cost import Machine, Measurement, Piece, load_cost_model
from spmdsim.redistribution.plans.merge import BUCKET_BYTES

MESH = Mesh((2, 3), ("a", "b"))


def machine(seed: int) -> Machine:
    rng = random.Random(seed)
    alpha, beta, flops = 10 ** rng.uniform(-8, -4), 10 ** rng.uniform(-11, -7), 10 ** rng.uniform(7, 11)
    return Machine("random", alpha=alpha, beta=beta, flops=flops, beta_memory=10 ** rng.uniform(-12, -9))


def shared_tensor(seed: int, kind: str, readers: int) -> Graph:
    """Return a graph of a result or parameter with several readers, of which pairs have equal strategies."""
    rng = random.Random(seed)
    size = rng.choice((12, 24))
    start = {} if kind == "parameter" else {"start": (size, size)}
    others = {f"x{k}": (size, rng.choice((6, 12))) for k in range(readers)}

    def program(w: Tensor, start: Tensor | None = None, **others: Tensor) -> list[Tensor]:
        shared = w if start is None else ops.matmul(start, w)
        return [ops.einsum("mk,mn->kn", shared, other) for other in others.values()]

    graph, strategy = record_graph(program, start | others, {"w": (size, size)}), None
    for k, reader in enumerate(o for o in graph.operators if o.kind == "einsum"):
        if k % 2 == 0:
            strategy = rng.choice(mesh_strategies(reader.bound, MESH))
        graph = graph.configure(**{reader.name: strategy})
    return graph


def cheapest(model: ChoiceModel) -> float:
    """Return the lowest price of any choice of strategies and layouts, as the program runs."""
    graph, best = model.graph, math.inf
    stored_layouts = {i: tuple(dict.fromkeys(storage.layouts)) for i, storage in model.kept.items()}
    for strategies in itertools.product(*(states.strategies for states in model.states)):
        default_layouts = []
        for value in graph.values:
            if value.producer is not None:
                default_layouts.append(
                    graph.operators[value.producer].bound.output_layouts(strategies[value.producer])[0]
                )
            else:
                reader, operand = graph.consumers[value.index][0]
                default_layouts.append(
                    graph.operators[reader].bound.input_layouts(strategies[reader])[operand]
                )
        for layouts in itertools.product(*stored_layouts.values()):
            layout_by_value = dict(zip(stored_layouts, layouts))
            chosen = tuple(
                layout_by_value.get(k, layout).canonical for k, layout in enumerate(default_layouts)
            )
            choice = StrategyChoice(graph, model.mesh, strategies, chosen)
            best = min(best, evaluate_choice(choice, model.settings, model.moves).seconds)
    return best


@pytest.mark.parametrize("readers", [2, 3, 4, 5])
@pytest.mark.parametrize("kind", ["result", "parameter"])
def test_the_optimum_has_the_lowest_price_of_the_run(kind: str, readers: int) -> None:
    for seed in range(8 if readers < 4 else 3):
        graph = shared_tensor(seed, kind, readers)
        settings = Settings(machine=machine(seed), merge=seed % 2 == 0)
        result = search(graph, MESH, settings=settings)
        assert result.optimal
        assert result.seconds == pytest.approx(cheapest(ChoiceModel(graph, MESH, settings)), rel=1e-9), seed


@pytest.mark.parametrize("kind", ["result", "parameter"])
def test_states_and_integer_programmes_are_as_exact_as_tables(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """States replace a table that is too large."""
    for seed in range(4):
        graph = shared_tensor(seed, kind, 4)
        settings = Settings(machine=machine(seed), merge=seed % 2 == 0)
        model = ChoiceModel(graph, MESH, settings)
        best = cheapest(model)
        assert model.problem.shared and model.complete
        assert solve_integer(model.problem).seconds == pytest.approx(best, rel=1e-6)
        monkeypatch.setattr("spmdsim.auto_parallel.costs.gradient_sums.MOST_TOGETHER", 0)
        other = ChoiceModel(graph, MESH, settings)
        assert not other.problem.shared
        if other.complete:
            assert eliminate(other.problem).seconds == pytest.approx(best, rel=1e-9)
        monkeypatch.undo()


def test_an_incomplete_search_is_not_called_optimal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four readers may share two layouts, but the search has only states without shared layouts."""

    def program(x: Tensor, w: Tensor) -> list[Tensor]:
        shared = ops.matmul(x, w)
        return [ops.relu(shared) for _ in range(4)]

    graph = record_graph(program, {"x": (12, 12)}, {"w": (12, 12)})
    settings = Settings(machine=machine(0))
    assert search(graph, MESH, settings=settings).optimal
    monkeypatch.setattr("spmdsim.auto_parallel.costs.gradient_sums.MOST_TOGETHER", 0)
    monkeypatch.setattr("spmdsim.auto_parallel.costs.gradient_sums.MOST_SUMS", 0)
    result = search(graph, MESH, settings=settings)
    assert not result.optimal and result.within is None and result.gap is None
    assert "optim" not in str(result).split("\n")[1]


def test_the_report_names_how_far_optimality_is_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prices are not exact if gradients fill several buckets. The report prints the remaining gap."""
    graph = build_program("mlp", layers=2, hidden=24, batch=24)
    exact = search(graph, MESH, settings=Settings(machine=machine(3)))
    assert exact.within == 0.0 and exact.to_dict()["within"] == 0.0
    assert "optimal under the model on this mesh" in str(exact)
    monkeypatch.setattr("spmdsim.auto_parallel.costs.move_prices.BUCKET_BYTES", 1000)
    rough = search(graph, MESH, settings=Settings(machine=machine(3)))
    assert rough.within is not None and rough.within > 0
    assert f"optimal to within {rough.within:.2%} under the model on this mesh" in str(rough)


def test_the_bound_of_memory_is_below_the_peak() -> None:
    """Readers may store copies after the tensor itself is freed, so no bound may count both."""

    def program(x: Tensor, **weights: Tensor) -> Tensor:
        for k in range(6):
            x = ops.add(ops.matmul(x, weights[f"a{k}"]), ops.matmul(x, weights[f"b{k}"]))
        return x

    weights = {f"{name}{k}": (8, 8) for k in range(6) for name in "ab"}
    graph = record_graph(program, {"x": (64, 8)}, weights)
    settings = Settings(machine=machine(0), sharded_parameters=True)
    rng, model = random.Random(1), ChoiceModel(graph, Mesh((4,), ("a",)), settings)
    problem, above = model.surely_kept(), 0
    for _ in range(500):
        states = problem.with_best_hubs([rng.randrange(n) for n in problem.sizes])
        peak = peak_memory(model.choice(states), model.settings).peak
        assert problem.bytes_of(states) <= peak
        above += model.problem.bytes_of(states) > peak
    assert above


def calibrated(seed: int) -> Machine:
    """Return a machine whose ranges and measured times jump up and down, like times of real libraries."""
    rng = random.Random(seed)
    start, beta = 10 ** rng.uniform(-7, -5), 10 ** rng.uniform(-11, -9)
    collectives = rng.sample(("all_reduce", "reduce_scatter", "all_gather"), rng.choice((0, 1, 3)))
    times = [
        Measurement(name, "native", n, 4**k, (n * start + 4**k * beta) * rng.uniform(0.5, 2.0))
        for name in collectives
        for n in (2, 3, 4, 6, 8)
        for k in range(3, 14)
    ]
    pieces = (Piece(4096, start, 3 * beta), Piece(65536, rng.uniform(0.3, 3) * start, beta))
    return Machine("jumps", start, beta, flops=1e9, pieces=pieces, measured=tuple(times))


@pytest.mark.parametrize("bucket", [BUCKET_BYTES, 60_000, 5_000])
def test_no_choice_is_below_the_proven_bound_if_prices_jump(
    bucket: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The choices are random or near the optimum. Buckets have room for all gradients, some or few."""
    monkeypatch.setattr("spmdsim.auto_parallel.costs.move_prices.BUCKET_BYTES", bucket)
    monkeypatch.setattr("spmdsim.redistribution.plans.merge.fill_buckets.__defaults__", (bucket,))
    checked = 0
    for seed in range(8):
        rng = random.Random(seed)
        graph = build_program(
            "mlp",
            layers=rng.choice((2, 4)),
            hidden=rng.choice((24, 48, 96)),
            batch=rng.choice((24, 120)),
            bias=seed % 2 == 0,
        )
        mesh = rng.choice((MESH, Mesh((4,), ("a",)), Mesh((2, 4), ("a", "b"))))
        settings = Settings(machine=calibrated(seed), overlap=0.5 * (seed % 3 == 0))
        result = search(graph, mesh, settings=settings)
        if not result.optimal:
            assert "optim" not in str(result).split("\n")[1]
            continue
        model = ChoiceModel(graph, mesh, settings)
        best = eliminate(model.problem).states
        assert result.least is not None and result.within is not None
        assert result.seconds <= (1 + result.within + 1e-5) * result.least
        for k in range(40):
            states = [rng.randrange(n) for n in model.problem.sizes]
            for v, best_state in enumerate(best if k % 2 else ()):
                states[v] = best_state if rng.random() < 0.8 else states[v]
            choice = model.choice(states)
            if not any(choice.layouts[value.index].partial for value in graph.sources):
                seconds = evaluate_choice(choice, settings, model.moves).seconds
                assert seconds >= result.least * (1 - 1e-9), (seed, choice.strategies)
                checked += 1
    assert checked > 100


def test_the_unproven_gap_of_a_calibrated_machine_is_small() -> None:
    """Jumps of prices between possible message sizes do not widen the gap."""
    share = search("mlp", 8, layers=2, machine=calibrated(0)).within
    assert share is not None and share < 0.1


def test_published_models_price_shared_messages() -> None:
    """A published model prices a message of several gradients as one collective of all their bytes."""
    settings = Settings(machine=load_cost_model("alpa"), merge=True)
    graph = build_program("mlp", layers=3, hidden=8, batch=8, bias=False)
    result = search(graph, Mesh((4,), ("dp",)), settings=settings).comparison["data parallel"]
    messages, prices = result.evaluation.messages, result.moves
    assert [len(message.moves) for message in messages] == [3]
    nbytes = messages[0].itemsize * sum(messages[0].elements)
    assert messages[0].seconds(prices) == prices.message_seconds(messages[0].merge, nbytes) > 0


def test_a_batch_without_rows_is_not_split() -> None:
    result = search(lambda x, w: ops.sum(x @ w), 4, inputs={"x": (0, 8)}, parameters={"w": (8, 8)})
    assert result.not_possible["data parallel"] == "matmul.w has 0 rows in the batch, fewer than 4"
