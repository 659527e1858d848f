"""The search, its report and its files follow its settings, and large searches have no lists of ranks."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import reduce

import pytest
from every_layout import every_layout
from recorded_graphs import record_graph

from spmdsim import Tensor, ops, search
from spmdsim.auto_parallel.costs.choice_model import ChoiceModel
from spmdsim.auto_parallel.costs.move_prices import MovePrices
from spmdsim.auto_parallel.costs.peak_memory import peak_memory
from spmdsim.auto_parallel.costs.search_settings import Settings
from spmdsim.auto_parallel.frontier import frontier, frontier_table
from spmdsim.auto_parallel.programs.graph import Graph
from spmdsim.auto_parallel.programs.networks import build_program
from spmdsim.auto_parallel.programs.record_program import record_program
from spmdsim.auto_parallel.search_result import SearchResult
from spmdsim.auto_parallel.solvers.choice_problem import IMPOSSIBLE
from spmdsim.auto_parallel.solvers.integer import DoesNotFitError
from spmdsim.auto_parallel.strategy_choice import binary_mesh, mesh_strategies
from spmdsim.core import Mesh
from spmdsim.cost import CostModel, Machine, load_cost_model
from spmdsim.errors import InputError, RuleError
from spmdsim.imitated import imitation
from spmdsim.redistribution import plan

#: A machine with two ranks per node, so that axes of small meshes cross nodes.
PAIRS = replace(Machine.cluster(), name="pairs", ranks_per_node=2)
AlpaModel = imitation("cost model", "alpa")
double_recursion = imitation("search", "double_recursion")
ALPA = AlpaModel(axes=("a", "b", "c"), alpha=(1.0, 1.0, 1.0), beta=(1.0, 0.1, 0.1))


@pytest.mark.parametrize(
    "machine",
    [Machine.laptop(), Machine.cluster(), Machine.accelerators(), PAIRS, ALPA, load_cost_model("oneflow")],
    ids=lambda machine: machine.name,
)
@pytest.mark.parametrize("shape", [(6,), (2, 4), (2, 3), (2, 2, 2)], ids=str)
def test_the_price_of_a_move_equals_the_price_of_its_plan(shape: tuple[int, ...], machine: CostModel) -> None:
    """Sizes are even and uneven, sources and targets may be partial, and machines may have nodes."""
    mesh, rng = Mesh(shape, ("a", "b", "c")[: len(shape)]), random.Random(str((shape, machine.name)))
    moves, even = MovePrices(Settings(machine=machine, exchange=True)), 0
    for ndim in (1, 2, 3):
        sources, targets = every_layout(mesh, ndim, partial=True), every_layout(mesh, ndim)
        for _ in range(16):
            src = rng.choice(sources)
            dst = src if rng.random() < 0.1 else rng.choice(targets)
            sizes = tuple(rng.choice((5, 8, 12, 24, 48, 96, 1024, 3072)) for _ in range(ndim))
            cuts = [(n, c) for layout in (src, dst) for n, c in zip(sizes, layout.cuts)]
            even += src != dst and all(n % c == 0 for n, c in cuts)
            expected = plan(src, dst, sizes, "float32", machine).seconds
            assert moves.seconds(src, dst, sizes, 4) == pytest.approx(expected, rel=1e-9), (src, dst, sizes)
    assert 8 < even < 45


def test_searches_and_plans_use_one_link_for_an_axis() -> None:
    """The link of a node is used by an axis with groups inside the node."""
    mesh, machine = Mesh((6,), ("a",)), Machine.accelerators()
    ends = mesh("a", None), mesh(None, None)
    expected = plan(*ends, (6144, 1024), "float32", machine).seconds
    assert MovePrices(Settings(machine=machine)).seconds(*ends, (6144, 1024), 4) == pytest.approx(expected)
    assert expected == pytest.approx(3 * 4e-6 + 5 / 6 * 6144 * 1024 * 4 * 5e-12)


@pytest.mark.parametrize("without", ["exchange", "gather", "scatter"])
def test_forbidden_collectives_are_not_used(without: str) -> None:
    mesh = Mesh((2, 2, 2), ("a", "b", "c"))
    settings = Settings(**{without: False})
    moves, unrestricted = MovePrices(settings), MovePrices(Settings())
    name = {"exchange": "exchange", "gather": "all_gather", "scatter": "reduce_scatter"}[without]
    sources = every_layout(mesh, 2, partial=True)
    layouts = every_layout(mesh, 2)
    rng, forbidden = random.Random(without), 0
    for _ in range(60):
        src, dst = rng.choice(sources), rng.choice(layouts)
        route = moves.plan(src, dst, (64, 64), 4)
        seconds = moves.seconds(src, dst, (64, 64), 4)
        cheapest = plan(src, dst, (64, 64), "float32", settings.machine, more_memory=True).seconds
        assert seconds >= cheapest * (1 - 1e-9)
        if seconds < IMPOSSIBLE:
            assert name not in [step.collective for step in route.steps]
            assert seconds == pytest.approx(route.seconds)
        forbidden += name in [step.collective for step in unrestricted.plan(src, dst, (64, 64), 4).steps]
    assert forbidden > 3


@pytest.mark.parametrize("name", ["tutorial", "mlp", "chain", "convolutions", "gpt", "bert", "moe"])
def test_built_in_programs_are_searched_and_reported(name: str) -> None:
    layered = name in ("gpt", "bert", "moe")
    ranks = 8 if name == "tutorial" else 2 if layered else 4  # The tutorial's cuts are for 8 ranks.
    result = search(build_program(name, **({"layers": 1} if layered else {})), ranks)
    text = str(result)
    assert "comparison" in text and "peak memory per rank" in text
    for operator in result.graph.operators[:3]:
        assert operator.name.split(".")[0] in text


def test_tying_repeated_layers_changes_nothing() -> None:
    graph, mesh = build_program("gpt", layers=3, hidden=64, batch=8, seq=16, heads=4), Mesh((4,), ("a",))
    tied = search(graph, mesh, settings=Settings(tie=True, partial=True))
    free = search(graph, mesh, settings=Settings(partial=True))
    assert tied.seconds == pytest.approx(free.seconds, rel=1e-6)
    assert len(ChoiceModel(graph, mesh, Settings(tie=True)).problem) < 0.6 * len(
        ChoiceModel(graph, mesh, Settings()).problem
    )


def test_overlap_and_recomputation_change_the_total_as_stated() -> None:
    graph, mesh = build_program("mlp", layers=2, hidden=32, batch=4096, bias=False), Mesh((8,), ("dp",))
    plain = search(graph, mesh, settings=Settings())
    assert not any(plain.layout(v.name).split_axes for v in graph.parameters)
    gradients = sum(cost.gradient for cost in plain.evaluation.operators)
    assert gradients > 0
    hidden = replace(plain, settings=Settings(overlap=1.0))
    assert hidden.seconds == pytest.approx(plain.seconds - gradients)
    again = replace(plain, settings=Settings(recompute=True))
    assert again.seconds > plain.seconds
    assert peak_memory(plain.choice, Settings(recompute=True)).activations <= plain.memory.activations


def test_peak_memory_counts_every_kind_of_tensor() -> None:
    sizes = {"sizes": (16, 4), "batch": 8}
    graph, mesh = build_program("chain", **sizes, training=True), Mesh((1,), ("a",))
    memory, operand, result = search(graph, mesh, settings=Settings()).memory, 4 * 8 * 16, 4 * 8 * 4
    assert (memory.parameters, memory.gradients, memory.optimizer) == (256, 256, 512)
    assert memory.activations == 0 and memory.where == "update"
    assert memory.transient == operand + result + 256
    assert memory.peak == 256 + 256 + 512 + operand + result + 256
    alone = search(build_program("chain", **sizes, training=False), mesh, settings=Settings()).memory
    assert (alone.peak, alone.activations, alone.where) == (256 + operand + result, 0, "mm0")


def test_peak_memory_follows_liveness() -> None:
    """At the peak, the widest tensor and its gradient exist, but the last operator's operand is freed."""
    graph = build_program("chain", sizes=(4, 64, 4, 1), batch=8, training=True)
    memory = search(graph, Mesh((1,), ("a",)), settings=Settings()).memory
    narrow, wide, weight, result = 4 * 8 * 4, 4 * 8 * 64, 4 * 64 * 4, 4 * 8
    assert memory.where == "mm1" and memory.gradients == 4 * 4
    assert memory.activations == narrow + wide
    assert memory.transient == result + (narrow + wide) + weight


@pytest.mark.parametrize(
    "functions, stored",
    [
        ([ops.relu], 1),
        ([ops.gelu], 1),
        ([ops.log], 1),
        ([lambda h: ops.add(h, h)], 0),
        ([ops.relu, ops.gelu], 1),
        ([ops.gelu, ops.relu], 2),
        ([ops.relu, ops.log], 1),
        ([ops.log, ops.relu], 2),
    ],
)
def test_peak_memory_counts_the_tensors_of_the_tape(
    functions: list[Callable[[Tensor], Tensor]], stored: int
) -> None:
    """A product stores x. A relu stores its result, a gelu and a log their operand, and sums nothing."""

    def program(x: Tensor, w: Tensor) -> Tensor:
        return ops.sum(reduce(lambda h, function: function(h), functions, ops.matmul(x, w)))

    sizes = {"inputs": {"x": (64, 32)}, "parameters": {"w": (32, 48)}}
    memory = search(program, Mesh((1,), ("a",)), settings=Settings(), **sizes).memory
    assert memory.activations == 4 * (64 * 32 + stored * 64 * 48)


def test_assignments_that_store_more_may_have_a_lower_peak() -> None:
    """Gathered weights give the highest peak to the assignments that store least."""
    graph, mesh = build_program("chain", sizes=(4, 4, 16), batch=64, training=True), Mesh((4,), ("a",))
    free = search(graph, mesh).memory.peak
    with pytest.raises(DoesNotFitError) as refused:
        search(graph, mesh, memory=200)
    least = int(str(refused.value).split("can be met is ")[1].split(" ")[0].replace(",", ""))
    assert least <= free
    for limit in (free, (free + least) // 2, least):
        assert search(graph, mesh, memory=limit).memory.peak <= limit


def test_a_memory_limit_is_met_or_the_smallest_possible_one_is_named() -> None:
    graph, mesh = build_program("mlp", layers=3, hidden=256, batch=1024), Mesh((4,), ("dp",))
    free = search(graph, mesh)
    with pytest.raises(DoesNotFitError, match="smallest limit that can be met is") as refused:
        search(graph, mesh, memory=1000)
    assert "of those tried" in str(refused.value)
    words = str(refused.value).split("can be met is ")[1].split(" ")[0]
    least = int(words.replace(",", ""))
    result = search(graph, mesh, memory=least)
    assert result.seconds >= free.seconds
    with pytest.raises(DoesNotFitError):
        search(graph, mesh, memory=least - 1)


def products(mesh: Mesh, *widths: int) -> Graph:
    """Return the graph of a sum of products of 64 rows with weights between these widths."""

    def program(x: Tensor, **weights: Tensor) -> Tensor:
        for weight in weights.values():
            x = x @ weight
        return ops.sum(x)

    sizes = {f"w{k}": pair for k, pair in enumerate(itertools.pairwise(widths))}
    return record_program(program, mesh, {"x": (64, widths[0])}, sizes)


def test_the_named_limit_is_the_lowest_peak_of_all_assignments() -> None:
    mesh = Mesh((4,), ("a",))
    graph = products(mesh, 64, 16, 8)
    model, peaks = ChoiceModel(graph, mesh, Settings(sharded_parameters=True)), []
    problem = model.problem
    free = [1 if v in {*problem.hubs} else size for v, size in enumerate(problem.sizes)]
    assert math.prod(free) > 1000
    for states in itertools.product(*map(range, free)):
        states = problem.with_best_hubs(states)
        if problem.price(states) < IMPOSSIBLE / 2:
            peaks.append(peak_memory(model.choice(states), model.settings, model.moves).peak)
    with pytest.raises(DoesNotFitError, match=f"can be met is {min(peaks):,}"):
        search(graph, mesh, memory=min(peaks) - 1)
    assert search(graph, mesh, memory=min(peaks)).memory.peak == min(peaks)


def test_a_low_peak_may_need_two_changes_at_a_time() -> None:
    """A local search that makes one change at a time ends at 14,852 bytes."""
    mesh = Mesh((2, 2), ("a", "b"))
    graph = products(mesh, 8, 64, 8)
    with pytest.raises(DoesNotFitError, match=r"can be met is 14,340$"):
        search(graph, mesh, memory=100)
    assert search(graph, mesh, memory=14_340).memory.peak == 14_340


def test_frontier_falls_and_starts_at_the_optimum() -> None:
    graph = build_program("mlp", layers=1, hidden=128, batch=512)
    points = frontier(graph, 4, Settings())
    assert len(points) >= 3
    assert all(a.seconds < b.seconds and a.memory > b.memory for a, b in itertools.pairwise(points))
    assert points[0].seconds == pytest.approx(min(s for _, s in search(graph, 4).considered), rel=1e-3)
    assert len(frontier_table(points).rows) == len(points)


def test_why_prints_the_difference_of_another_strategy() -> None:
    result = search(build_program("mlp", layers=2, hidden=512, batch=64), Mesh((2, 4), ("dp", "tp")))
    answer = result.why("fc1", {".0": "tp"})
    assert answer.other.strategy("fc1").axes == {".0": ("tp",)}
    assert answer.difference > 0
    text = str(answer)
    assert "fc1 with dim 0:tp instead of" in text and "total" in text
    same = result.why("fc1", result.strategy("fc1"))
    assert same.difference == pytest.approx(0, abs=1e-12)


def propagate(graph: Graph, mesh: Mesh) -> SearchResult:
    """Return the result of the propagation alone, without a local search."""
    return search(graph, mesh, method="sharding_propagation", polish=False, settings=Settings())


def test_propagation_reaches_all_connected_operators() -> None:
    def program(x: Tensor, y: Tensor) -> list[Tensor]:
        a = ops.relu(x)
        return [ops.add(ops.relu(a), ops.relu(ops.relu(a))), ops.relu(y)]

    graph = record_graph(program, {"x": (8, 8), "y": (8, 8)}, {})
    result = propagate(graph.configure(relu={".1": "x"}), Mesh((2,), ("x",)))
    assert [operator.kind for operator in graph.operators] == [*["relu"] * 4, "add", "relu"]
    assert [str(s) for s in result.choice.strategies] == [".1:x"] * 5 + ["replicated"]
    assert not result.remarks


def test_propagation_decides_an_operator_after_the_producers_of_all_operands() -> None:
    """The sum follows its large operand, although its small one is decided first."""

    def program(small: Tensor, large: Tensor) -> Tensor:
        small = ops.relu(small)
        return ops.add(ops.relu(ops.relu(large)), small)

    graph = record_graph(program, {"small": (64,), "large": (512, 64)}, {})
    first, second, third, total = (operator.name for operator in graph.operators)
    result = propagate(graph.configure(**{first: {".0": "x"}, second: {".1": "x"}}), Mesh((4,), ("x",)))
    assert [str(result.strategy(name)) for name in (first, second, third)] == [".0:x", ".1:x", ".1:x"]
    assert result.layout(total).cuts == (4, 1)


def test_propagation_reaches_producers() -> None:
    graph = build_program("mlp", layers=2, hidden=16, batch=16, bias=False).configure(fc1={".0": "x"})
    strategies = propagate(graph, Mesh((2,), ("x",))).choice.strategies
    assert [str(s) for s in strategies] == [".0:x", ".1:x", ".0:x", "b:x"]


@pytest.mark.parametrize("layers", [2, 3, 4])
def test_propagation_chooses_by_the_gradients_of_the_operator_itself(layers: int) -> None:
    """The operand of fc0 needs no gradient, unlike the operand of the equal fc2, which comes first."""
    graph = build_program("mlp", layers=layers, hidden=64, batch=32, bias=False, activation=False)
    result = propagate(graph.configure(fc1={"k": "b"}), Mesh((2, 4), ("a", "b")))
    assert str(result.choice.strategies[0]) == "n:b"


def test_propagation_prefers_a_reshape_without_communication() -> None:
    graph = record_graph(lambda x: ops.relu(ops.reshape(x, (8, 24))), {"x": (8, 4, 6)}, {})
    mesh, (flat, _) = Mesh((4,), ("x",)), graph.operators
    rows, columns = (dim[0] for dim in flat.bound.outputs[0])
    for dim, factor in ((".0", columns), (".1", rows)):
        strategies = propagate(graph.configure(relu={dim: "x"}), mesh).choice.strategies
        assert [s.axes for s in strategies] == [{factor: ("x",)}, {dim: ("x",)}]


def test_propagation_remarks_on_configured_operators_that_disagree() -> None:
    graph = build_program("mlp", layers=2, hidden=16, batch=16, bias=False)
    result = propagate(graph.configure(fc0={".0": "x"}, relu0={".0": "x"}), Mesh((2,), ("x",)))
    assert len(result.remarks) == 1 and "fc0 and relu0 are both configured" in result.remarks[0]
    assert [s.axes for s in result.choice.strategies[:2]] == [{".0": ("x",)}] * 2


def test_propagation_without_a_configured_operator_is_refused() -> None:
    with pytest.raises(InputError, match=r"\.shard"):
        search(build_program("mlp", layers=2, hidden=16, batch=16), 2, method="sharding_propagation")


def test_unknown_names_are_refused() -> None:
    with pytest.raises(InputError, match="no search is called"):
        search("mlp", 2, method="magic")
    with pytest.raises(InputError, match="no built-in program"):
        search("resnet", 2)
    with pytest.raises(InputError, match="no size 'depth'"):
        search("mlp", 2, depth=3)
    with pytest.raises(InputError, match="no operator is called"):
        build_program("mlp", layers=1).operator("fc9")
    with pytest.raises(InputError, match="the number of ranks must be 1 or more, got 0"):
        search("mlp", 0)
    with pytest.raises(InputError, match="no operator can use 7 ranks"):
        search("mlp", 7, hidden=5, batch=6)
    with pytest.raises(RuleError, match="operand"):
        search(build_program("mlp", layers=2, hidden=16, batch=16).configure(fc0=((2, 2), (4, 1))), 4)


@pytest.mark.parametrize(
    ("name", "sizes", "words"),
    [
        ("mlp", {"layers": -1}, "program 'mlp': layers is -1; it has to be 1 or more"),
        ("mlp", {"layers": 2, "hidden": 0}, "program 'mlp': hidden is 0; it has to be 1 or more"),
        ("moe", {"experts": 0}, "program 'moe': experts is 0; it has to be 1 or more"),
        ("gpt", {"heads": 0}, "program 'gpt': heads is 0; it has to be 1 or more"),
    ],
)
def test_sizes_of_programs_must_be_positive(name: str, sizes: dict[str, int], words: str) -> None:
    with pytest.raises(InputError, match=f"^{words}$"):
        build_program(name, **sizes)


def test_layers_of_a_program_are_found() -> None:
    def program(x: Tensor, **weights: Tensor) -> Tensor:
        x = ops.exp(x)
        for weight in weights.values():
            x = ops.add(x, ops.gelu(ops.matmul(x, weight)))
        return ops.sum(x)

    graph = record_program(program, 2, {"x": (8, 8)}, {f"w{k}": (8, 8) for k in range(5)})
    layers = [operator.layer for operator in graph.operators]
    assert layers[0] is layers[-1] is None
    sizes = Counter(layer for layer in layers if layer)
    assert len(sizes) >= 4 and set(sizes.values()) == {3}


def test_a_single_operator_may_be_a_layer() -> None:
    graph = record_program(lambda x: ops.relu(ops.relu(ops.relu(ops.relu(ops.exp(x))))), 2, {"x": (8, 8)})
    layers = [operator.layer for operator in graph.operators]
    assert layers == [None, ("layer", 0), ("layer", 1), ("layer", 2), ("layer", 3)]


def test_device_matrices_are_all_factorisations() -> None:
    result = search("chain", 12, sizes=(12, 12), batch=12, axes=3)
    assert [mesh for mesh, _ in result.considered] == [
        "dp=12", "dp=2 tp=6", "dp=3 tp=4", "dp=4 tp=3", "dp=6 tp=2",
        "dp=2 tp=2 sp=3", "dp=2 tp=3 sp=2", "dp=3 tp=2 sp=2",
    ]  # fmt: skip
    assert search("mlp", 1, layers=1, hidden=8, batch=8).mesh.shape == (1,)
    assert binary_mesh(1).size == 1
    bound = build_program("mlp", layers=1, hidden=8, batch=8).operators[0].bound
    assert len(mesh_strategies(bound, Mesh((1, 2), ("a", "b")))) == 4


@pytest.mark.parametrize("layers", [10, 40])
def test_double_recursion_makes_one_cut_per_operator_and_step(layers: int) -> None:
    graph = build_program("gpt", layers=layers, hidden=256, batch=64, seq=64, heads=4)
    for ranks, steps in ((8, 3), (64, 6), (65536, 16)):
        result = double_recursion(graph, ranks)
        assert {len(cuts) for cuts in result.cuts} == {steps}


def test_large_searches_stay_symbolic() -> None:
    """A search on 65,536 ranks makes no list of ranks."""
    result = search(
        "gpt",
        Mesh((8, 8192), ("dp", "tp")),
        layers=2,
        hidden=12288,
        batch=8192,
        seq=128,
        vocab=51200,
        heads=96,
        machine=Machine.accelerators(),
    )
    assert result.mesh.size == 65536 and result.optimal
    assert len({result.strategy(f"l{k}.fc1") for k in range(2)}) == 1


def test_the_tutorials_configured_strategies_propagate() -> None:
    result = search(build_program("tutorial"), 8, method="sharding_propagation", polish=False)
    assert len(result.remarks) == 3
    flatten = result.graph.operator("flatten")
    assert [layout.cuts[0] for layout in flatten.bound.input_layouts(result.strategy("flatten"))] == [2]


def test_configured_cuts_are_repeated_on_more_ranks() -> None:
    """Cuts for 8 ranks are repeated on the right."""
    for ranks in (16, 64, 4096):
        result = search(build_program("tutorial"), ranks, method="sharding_propagation")
        first = result.graph.operator("matmul1")
        strategy = result.strategy("matmul1")
        assert [layout.cuts for layout in first.bound.input_layouts(strategy)] == [(2, 4), (4, 1)]
        assert result.mesh.size == ranks and len(result.mesh.axes) <= 4
    recursion = double_recursion(build_program("tutorial"), 4096)
    assert recursion.parts(first.index) == ((2, 4), (4, 1))


def test_meshes_with_too_many_axes_are_refused() -> None:
    mesh = Mesh((2,) * 12, [f"a{k}" for k in range(12)])
    with pytest.raises(InputError, match="double recursion"):
        search(build_program("mlp", layers=1, hidden=4096, batch=4096), mesh)


@pytest.mark.parametrize(
    "model", [*map(load_cost_model, ("mindspore", "dtensor", "oneflow")), AlpaModel(axes=("a", "b"))]
)
def test_published_models_can_price_a_search(model: CostModel) -> None:
    result = search(
        build_program("mlp", layers=3, hidden=128, batch=64),
        Mesh((2, 2), ("a", "b")),
        settings=Settings(machine=model),
    )
    for other, one in result.comparison.items():
        assert one.seconds >= result.seconds * (1 - 1e-9), other


def test_double_recursion_needs_memory_for_all_tensors() -> None:
    with pytest.raises(InputError, match="memory allows 1,000 bytes per rank"):
        double_recursion(build_program("mlp", layers=2, hidden=256, batch=64), 8, memory=1000)


def test_more_axes_are_searched_when_asked() -> None:
    two = search("mlp", 8, layers=1, hidden=256, batch=64, axes=2)
    three = search("mlp", 8, layers=1, hidden=256, batch=64, axes=3)
    assert len(three.considered) == len(two.considered) + 1
    assert min(s for _, s in three.considered) <= min(s for _, s in two.considered)
    assert search("mlp", 8, layers=1, hidden=256, batch=64).considered == three.considered, "quick: three"
    few = search("gpt", 8, layers=1, hidden=64, batch=8, seq=16)
    assert len(few.considered) == 3, "many strategies: two"
