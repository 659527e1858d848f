"""Answers published by Alpa, AutoParallel, Mesh TensorFlow and nnScaler, recovered by the exact search."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from spmdsim.auto_parallel import rules
from spmdsim.auto_parallel.baselines import complete, fully_sharded, megatron
from spmdsim.auto_parallel.elimination import eliminate
from spmdsim.auto_parallel.found import Found
from spmdsim.auto_parallel.graph import Graph, GraphBuilder
from spmdsim.auto_parallel.integer import solve_integer
from spmdsim.auto_parallel.matmul_grid import best_grid, grid_words, grids, lower_bound, regime
from spmdsim.auto_parallel.model import Model
from spmdsim.auto_parallel.problem import Problem
from spmdsim.auto_parallel.programs import bert, convolutions, gpt, mlp, moe
from spmdsim.auto_parallel.search import search_mesh
from spmdsim.auto_parallel.settings import Settings
from spmdsim.cost import Machine
from spmdsim.cost.published import AlpaModel
from spmdsim.layout import Layout, Mesh
from spmdsim.rules import Rule, Strategy

PEERS = json.loads((Path(__file__).parent / "vectors" / "auto_parallel_peers.json").read_text())
ALPA = {case["test"]: case for case in PEERS["autoshard_alpa"]["vectors"]}


def assumptions(shape: tuple[int, ...], beta: tuple[float, ...], **options: object) -> Settings:
    axes = ("a", "b")[: len(shape)]
    alpha = (1.0,) * len(shape)
    return Settings.alpa(AlpaModel(axes=axes, alpha=alpha, beta=beta[: len(shape)]), **options)


def alpa(
    graph: Graph, shape: tuple[int, ...], beta: tuple[float, ...] = (1.0, 1.0), **options: object
) -> Found:
    mesh = Mesh(shape, ("a", "b")[: len(shape)])
    return search_mesh(graph, mesh, assumptions(shape, beta, **options))


def parts(found: Found, operator: str) -> tuple[tuple[int, ...], ...]:
    bound = found.graph.operator(operator).bound
    return tuple(layout.parts for layout in bound.input_layouts(found.strategy(operator)))


def test_large_batch_is_data_parallel() -> None:
    case = ALPA["test_mlp.py data_parallel"]
    found = alpa(mlp(case["layers"], case["hidden"], case["batch"]), (4,))
    assert found.seconds == pytest.approx(case["objective"], rel=0.01)
    assert found.merged_collectives == {"all_reduce": case["all_reduce"]}
    assert all(not found.choice.layouts[v.index].split_axes for v in found.graph.parameters)


def test_large_width_is_megatron() -> None:
    # The published objective of the same network with batch 32 and width 256: layers - 1 all_reduces.
    found = alpa(mlp(6, 256, 32), (4,))
    assert found.seconds == pytest.approx(245765.05, rel=1e-7)
    assert found.collectives == {"all_reduce": 5}
    for layer in range(6):
        assert parts(found, f"fc{layer}")[1] == ((1, 4) if layer % 2 == 0 else (4, 1))


def test_two_axes_mix_both() -> None:
    case = ALPA["test_mlp.py 2d_mesh"]
    found = alpa(mlp(6, 32, 256), (2, 2), (1.0, 0.1))
    assert found.seconds == pytest.approx(case["objective"], rel=0.01)
    assert found.merged_collectives == {"all_reduce": case["all_reduce"]}
    weights = [found.layout(f"w{k}").parts for k in range(6)]
    assert weights == [(1, 2), (2, 1)] * 3
    assert all(found.layout(f"w{k}").split_axes == ("b",) for k in range(6))


@pytest.mark.parametrize("batch, width, megatron_wins", [(8, 64, True), (1024, 64, False), (64, 1024, True)])
def test_crossover_follows_from_the_bytes(batch: int, width: int, megatron_wins: bool) -> None:
    found = alpa(mlp(4, width, batch, bias=False), (4,))
    split = any(found.choice.layouts[v.index].split_axes for v in found.graph.parameters)
    assert split == megatron_wins == (3 * batch * width < 4 * width * width)


def test_reduce_scatter_never_beats_its_all_reduce() -> None:
    case = ALPA["test_mlp.py model_parallel prefer_reduce_scatter"]
    found = alpa(mlp(6, 256, 32), (4,), scatter=True).collectives
    scattered = found.get("reduce_scatter", 0)
    assert found.get("all_reduce", 0) + scattered == case["all_reduce_plus_reduce_scatter"]
    assert scattered == found.get("all_gather", 0)


def test_fully_sharded_has_one_merged_scatter_and_gather() -> None:
    case = ALPA["test_mlp.py Zero2 data parallel"]
    settings = assumptions((4,), (1.0, 1.0), scatter=True)
    choice = fully_sharded(mlp(6, 32, 256), Mesh((4,), ("a",)), settings)
    merged = Found(choice, settings, "fully sharded").merged_collectives
    assert merged == {"reduce_scatter": case["reduce_scatter"], "all_gather": case["all_gather"]}


@pytest.mark.parametrize("share", [0.4, 0.55, 0.8])
def test_memory_pressure_shards_parameters(share: float) -> None:
    """Under a limit between the two, the answer lies between plain and fully sharded data parallelism."""
    graph, mesh = mlp(6, 512, 2048), Mesh((4,), ("a",))
    settings = assumptions((4,), (1.0, 1.0), scatter=True, sharded_parameters=True)
    model = Model(graph, mesh, settings)
    free = eliminate(model.problem)
    sharded = fully_sharded(graph, mesh, settings)
    low = model.problem.bytes_of(model.states_of_choice(sharded))
    assert low < free.memory
    limit = low + share * (free.memory - low)
    found = solve_integer(model.problem, limit)
    assert found.memory <= limit and free.seconds <= found.seconds
    assert found.seconds <= model.problem.price(model.states_of_choice(sharded)) * (1 + 1e-9)
    stored = model.choice(found.states).layouts
    assert any(stored[v.index].split_axes for v in graph.parameters)


@pytest.mark.parametrize("recompute, name", [(False, "model_parallel"), (True, "model_parallel remat")])
def test_bert_layers(recompute: bool, name: str) -> None:
    case = ALPA[f"test_bert.py layer {name}"]
    found = alpa(bert(2, 128, 8, 8, heads=8), (4,), recompute=recompute)
    assert found.seconds == pytest.approx(case["objective"], rel=1e-6)
    assert found.collectives == {"all_reduce": case["all_reduce"]}
    for layer in ("l0", "l1"):
        assert found.layout(f"{layer}.qkv.w").parts == (1, 1, 4, 1)
        assert found.layout(f"{layer}.out.w").parts == (4, 1, 1)
        assert found.layout(f"{layer}.fc1.w").parts == (1, 4)
        assert found.layout(f"{layer}.fc2.w").parts == (4, 1)


@pytest.mark.parametrize("layers", [1, 3, 5])
def test_bert_all_reduces_grow_by_four_a_layer(layers: int) -> None:
    assert alpa(bert(layers), (4,)).collectives == {"all_reduce": 4 * layers - 1}
    graph, mesh = bert(layers), Mesh((4,), ("a",))
    settings = assumptions((4,), (1.0, 1.0))
    by_hand = Found(complete(graph, mesh, megatron(graph, mesh), settings), settings, "by hand")
    assert by_hand.collectives == {"all_reduce": 4 * layers - 1}


def test_tied_embedding() -> None:
    case = ALPA["test_bert.py embedding_2d_mesh (tied)"]
    graph = gpt(0, case["hidden"], case["batch"], case["seq"], heads=1, vocab=case["vocab"])
    found = alpa(graph, (2, 2))
    assert found.seconds == pytest.approx(case["objective"], rel=0.01)
    assert set(found.collectives) == {"all_reduce"}
    assert found.layout("embedding").parts == (2, 1)


def test_experts_are_split() -> None:
    case = ALPA["test_moe.py layer"]
    graph = moe(1, case["hidden"], case["batch"], case["seq"], experts=case["E"], group=case["S"])
    found = alpa(graph, (4,))
    assert found.seconds == pytest.approx(case["objective"], rel=1e-6)
    assert found.merged_collectives == {"all_to_all": case["all_to_all"], "all_reduce": case["all_reduce"]}
    assert found.layout("l0.expert1").parts == (4, 1, 1)
    assert not found.layout("l0.qkv.w").split_axes and not found.layout("l0.gate.w").split_axes


@pytest.mark.parametrize("layers", [2, 4, 6])
def test_convolutions_alternate_channels(layers: int) -> None:
    found = alpa(convolutions(layers, 64, 4, 4), (4,))
    assert found.collectives == {"all_reduce": layers - 1}


def test_depthwise_convolutions_need_at_most_one_all_reduce() -> None:
    found = alpa(convolutions(3, 64, 4, 4, depthwise=True), (4,))
    assert (
        found.collectives.get("all_reduce", 0) <= ALPA["test_conv.py depthwise model_parallel"]["all_reduce"]
    )
    assert set(found.collectives) <= {"all_reduce"}


def test_small_network_with_one_all_reduce() -> None:
    case = ALPA["test_basic.py dropout MLP (32,32,16)"]
    found = alpa(mlp(sizes=(32, 32, 16), batch=64), tuple(case["mesh"][0]))
    assert found.merged_collectives == {"all_reduce": case["all_reduce"]}
    assert found.seconds < case["objective_below"]


def test_argmax_splits_the_other_dim() -> None:
    build = GraphBuilder("argmax")
    x = build.input("x", (144, 144))
    y = build.apply(Rule.parse("a b -> b", whole="a"), x, name="argmax")
    found = search_mesh(build.graph(y), Mesh((4,), ("a",)), Settings(machine=Machine.laptop()))
    assert not found.collectives
    assert parts(found, "argmax") == ((1, 4),)


def test_fsdp_with_megatron_gives_the_published_placements() -> None:
    """Every matmul of the feed-forward part, forward and backward, over (dp, tp)."""
    case = next(c for c in PEERS["autoshard_autoparallel"]["vectors"] if c.get("model") == "FFN")
    mesh = Mesh((2, 4), ("dp", "tp"))
    graph = mlp(sizes=(64, 256, 64), batch=64, bias=False)
    first, second = (megatron(graph, mesh)[graph.operator(n).index] for n in ("fc0", "fc1"))
    bound = [graph.operator(n).bound for n in ("fc0", "fc1")]

    def short(layout: Layout, turned: bool = False) -> list[str]:
        names = [str(p) for p in layout.placements]
        swap = {"S(0)": "S1", "S(1)": "S0"} if turned else {"S(0)": "S0", "S(1)": "S1"}
        return [swap.get(n, n[0]) for n in names]

    found = []
    for rule, strategy in zip(bound, (first, second)):
        (x, w), (y,) = rule.input_layouts(strategy), rule.output_layouts(strategy)
        found.append({"in1": short(x), "in2": short(w), "out": short(y)})
    # Backward of the second: the weight's gradient dy^T h, and dh = dy W; then the first weight's.
    (h, w2), dy = bound[1].input_layouts(second), bound[1].output_layouts(second)[0].dual()
    found.append(
        {"in1": short(dy, True), "in2": short(h), "out": short(bound[1].gradient_layout(second, 1), True)}
    )
    found.append(
        {"in1": short(dy), "in2": short(w2, True), "out": short(bound[1].gradient_layout(second, 0))}
    )
    dh, x = bound[0].output_layouts(first)[0].dual(), bound[0].input_layouts(first)[0]
    found.append(
        {"in1": short(dh, True), "in2": short(x), "out": short(bound[0].gradient_layout(first, 1), True)}
    )
    assert found[:3] == case["matmuls_in_graph_order"][:3]
    assert found[4] == case["matmuls_in_graph_order"][4]
    assert found[3]["in1"] == case["matmuls_in_graph_order"][3]["in1"]
    assert found[3]["out"] == case["matmuls_in_graph_order"][3]["out"]


def test_data_parallel_without_memory_pressure() -> None:
    case = PEERS["autoshard_autoparallel"]["vectors"][0]
    found = search_mesh(mlp(2, 64, 4096), Mesh((8,), ("dp",)), Settings(sharded_parameters=True))
    assert [["R" if not found.layout(v.name).split_axes else "S"] for v in found.graph.parameters[:1]] == [
        case["params"]
    ]


@pytest.mark.parametrize("whole", [False, True])
def test_least_memory_of_one_einsum(whole: bool) -> None:
    build = GraphBuilder("einsum", training=False)
    x, y = build.parameter("x", (10, 5)), build.parameter("y", (5, 20))
    rule = Rule.parse("a b, b c -> a c", linear="each", whole="a c" if whole else "")
    build.apply(rule, x, y, name="einsum")
    model = Model(build.graph(), Mesh((4, 2), ("m1", "m2")), Settings(nested=False))
    states = eliminate(model.problem.weighted(1.0, 0.0)).states
    strategy = model.choice(states).strategies[0]
    wanted = {} if whole else {"a": ("m2",), "c": ("m1",)}
    assert dict(strategy.splits) == wanted


def test_dynamic_programme_of_nnscaler() -> None:
    case = PEERS["autoshard_nnscaler_dp"]["vectors"][0]
    problem = Problem([np.array(row, float) for row in case["compute"]])
    for k, edge in enumerate(case["edge_cost"]):
        problem.add_pair(k, k + 1, np.array(edge, float))
    found = eliminate(problem)
    assert found.seconds == pytest.approx(case["optimal_time"])
    assert list(found.states) == case["path"]


def test_embedding_rule_keeps_rows_split() -> None:
    mesh = Mesh((4,), ("a",))
    build = GraphBuilder("lookup")
    table, tokens = build.parameter("t", (64, 8)), build.input("i", (4, 4))
    build.apply(rules.LOOKUP, table, tokens, name="lookup")
    bound = build.graph().operator("lookup").bound
    strategy = Strategy.of(mesh, {"v": "a"})
    assert bound.output_layouts(strategy)[0].partial_axes == ("a",)


@pytest.mark.parametrize("case", PEERS["matmul_lower_bounds"]["vectors"])
def test_grids_of_one_product(case: dict) -> None:
    m, k, n, ranks = (case[key] for key in "MKNP")
    found = best_grid(m, k, n, ranks)
    assert found.bound == pytest.approx(case["lower_bound_words_per_rank"], rel=1e-6)
    assert list(found.grid) == case["best_grid_pm_pk_pn"]
    assert found.words == pytest.approx(case["best_grid_words"])
    assert regime(m, k, n, ranks) == case["regime"]
    assert grid_words(m, k, n, (ranks, 1, 1)) == pytest.approx(case["allgather_B_1d_words"])
    flat = min(grid_words(m, k, n, grid) for grid in grids(ranks, deep=False))
    assert flat == pytest.approx(case["summa_best_2d_words"])
    assert found.words >= found.bound * (1 - 1e-9)


@pytest.mark.parametrize("sizes", [(4096, 4096, 4096, 64), (8192, 8192, 128, 64), (65536, 256, 256, 8)])
def test_bound_is_met_where_a_grid_attains_it(sizes: tuple[int, int, int, int]) -> None:
    assert best_grid(*sizes).ratio == pytest.approx(1.0)


def test_bound_is_continuous_and_idle_ranks_pay() -> None:
    for ranks in (8, 64, 512):
        assert lower_bound(4096, 64, 512, ranks) >= lower_bound(4096, 64, 512, 2 * ranks) > 0
    assert lower_bound(4096, 512, 64, 8) == pytest.approx(lower_bound(4096 + 1, 512, 64, 8), rel=2e-2)
    prime = best_grid(1000, 1000, 1000, 65)
    assert prime.used == 64 and prime.grid == (4, 4, 4)
    assert prime.words < grid_words(1000, 1000, 1000, (13, 5, 1))
    assert best_grid(3, 3, 3, 64).grid == (3, 3, 3)
