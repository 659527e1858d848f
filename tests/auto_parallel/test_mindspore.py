"""Double recursion, enumeration and cost terms give MindSpore's published results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mindspore_cuts import cut_strategies, operator_cost, operator_cuts, step_costs, strategy_cost
from recorded_graphs import record_graph

from spmdsim import Tensor, ops
from spmdsim.auto_parallel.programs.networks import build_program
from spmdsim.auto_parallel.strategy_choice import prime_factors
from spmdsim.core.cuts import strategy_from_cuts
from spmdsim.errors import InputError
from spmdsim.imitated import imitation

double_recursion = imitation("search", "double_recursion")
MindSporeModel = imitation("cost model", "mindspore")
VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "auto_parallel_mindspore.json").read_text())
FACTORS = {".0": "i", "k": "k", "n": "j", None: None}


def cases(kind: str) -> list[Any]:
    """Return the published cases of a kind as parameters."""

    params = [pytest.param(v["given"], v["expect"], id=v["id"]) for v in VECTORS if v["kind"] == kind]
    assert params, f"no case of kind {kind}"
    return params


@pytest.mark.parametrize("inputs, expect", cases("drec_matmul"))
def test_double_recursion_cuts_one_product_as_published(inputs: dict, expect: dict) -> None:
    graph = build_program("chain", sizes=(inputs["K"], inputs["J"]), batch=inputs["I"])
    result = double_recursion(graph, inputs["devices"], inputs["version"])
    assert [FACTORS[cut] for cut in result.cuts[0]] == expect["cuts"]
    assert [list(cuts) for cuts in result.parts(0)] == expect["in_strategy"]
    earlier_cuts: dict[str, int] = {}
    for cut, cut_count, expected_costs in zip(
        result.cuts[0], prime_factors(inputs["devices"]), expect["costs_per_loop"]
    ):
        costs = step_costs(graph.operators[0], earlier_cuts, cut_count, inputs["version"])
        assert {FACTORS[f]: c for f, c in costs.items()} == pytest.approx(expected_costs)
        if cut is not None:
            earlier_cuts[cut] = earlier_cuts.get(cut, 1) * cut_count


@pytest.mark.parametrize("inputs, expect", cases("strategy_enumeration"))
def test_the_number_of_candidates_is_as_published(inputs: dict, expect: dict) -> None:
    strategies = cut_strategies(inputs["input_shapes"], inputs["devices"], broadcast=inputs["broadcast"])
    assert len(strategies) == len(set(strategies)) == expect["count"]


def test_three_splittable_dims_have_twenty_candidates() -> None:
    assert len(cut_strategies([(64, 32, 16)], 8)) == 20
    assert len(operator_cuts(build_program("chain", sizes=(64, 64), batch=64).operators[0], 8)) == 20


def test_fully_used_devices_allow_all_cuts_or_none() -> None:
    strategies = cut_strategies([(64, 32)], 8, fully_use=True)
    assert sorted(a * b for ((a, b),) in strategies) == [1, 8, 8, 8, 8]


def test_odd_dims_are_not_cut() -> None:
    assert cut_strategies([(6, 5)], 8) == (((1, 1),), ((2, 1),))


@pytest.mark.parametrize("inputs, expect", cases("op_cost"))
def test_the_cost_of_an_operator_is_as_published(inputs: dict, expect: dict) -> None:
    cost = operator_cost(
        inputs["input_slices"],
        inputs["input_shapes"],
        inputs.get("output_slices", []),
        inputs["is_parameter"],
        inputs["dtype_bytes"],
        reduces=inputs["op"] == "MatMul",
    )
    for name, value in expect.items():
        assert getattr(cost, name) == value, name


def test_operator_cost_from_a_strategy_matches_the_slices() -> None:
    operator = build_program("chain", sizes=(304, 500), batch=200).operators[0]
    strategy = strategy_from_cuts(operator.bound, ((2, 2), (2, 1)), 8)
    cost = strategy_cost(operator, strategy, [False, True])
    rows, columns = 4 * 100 * 152, 4 * 152 * 500
    assert cost.forward_comm == 4 * 100 * 500
    assert cost.backward_comm == columns, "the weight is replicated over the rows' cuts and the repeat"
    assert cost.forward_computation == rows + columns + cost.forward_comm
    assert cost.objective(MindSporeModel(beta=50.0)) == cost.computation + 50 * (
        cost.forward_comm + 0.001 * cost.backward_comm
    )


def test_operator_cost_refuses_slices_that_do_not_divide() -> None:
    with pytest.raises(InputError, match="does not divide"):
        operator_cost([(3, 4)], [(8, 8)], [], [False])


@pytest.mark.parametrize("inputs, expect", cases("cost_refine"))
def test_short_messages_are_refined_as_published(inputs: dict, expect: dict) -> None:
    model = MindSporeModel(threshold=inputs["threshold"], const=inputs["const"], bias=inputs["bias"])
    assert [model.refine(x) for x in inputs["inputs"]] == expect["outputs"]


@pytest.mark.parametrize("version", ["r1.0", "2.x"])
@pytest.mark.parametrize("ranks", [1, 6, 8, 12, 64])
def test_double_recursion_gives_legal_strategies(version: str, ranks: int) -> None:
    graph = build_program("mlp", layers=3, sizes=(96, 48, 96, 24), batch=36)
    result = double_recursion(graph, ranks, version)
    for operator, strategy, cuts in zip(graph.operators, result.strategies(), result.cuts):
        operator.bound.check(strategy)
        assert len(cuts) == len(prime_factors(ranks)) == len([s for s in strategy.mesh.shape if s > 1])
        assert all(operator.bound.sizes[f] % strategy.parts(f) == 0 for f, _ in strategy.splits)


def test_double_recursion_keeps_configured_operators() -> None:
    graph = build_program("mlp", layers=2, hidden=64, batch=64).configure(fc1=((2, 4), (4, 1)))
    for version in ("r1.0", "2.x"):
        result = double_recursion(graph, 8, version)
        assert result.parts(graph.operator("fc1").index) == ((2, 4), (4, 1))


def product_and_relu(x: Tensor, w: Tensor) -> Tensor:
    return ops.relu(ops.matmul(x, w))


@pytest.mark.parametrize("version", ["r1.0", "2.x"])
def test_neighbours_follow_the_cuts_of_a_product(version: str) -> None:
    """A ReLU has no cost of its own and follows the cut columns of the product."""
    graph = record_graph(product_and_relu, {"x": (64, 1024)}, {"w": (1024, 4096)})
    result = double_recursion(graph, 8, version, order="weight")
    assert result.cuts[0] == ("n", "n", "n")
    assert result.cuts[1] == (".0", ".0", ".0")


def test_one_differing_dim_is_free_in_the_first_version_only() -> None:
    """The product is replicated after a cut of the summed dim. Version r1.0 cuts the ReLU at no cost."""
    graph = record_graph(product_and_relu, {"x": (32, 784)}, {"w": (784, 32)})
    result = double_recursion(graph, 2, "r1.0")
    assert result.cuts == (("k",), (".1",))


def test_double_recursion_refuses_no_devices_and_unknown_versions() -> None:
    with pytest.raises(InputError, match="ranks must be an integer of 1 or more, got 0"):
        double_recursion(build_program("mlp", layers=1, hidden=8, batch=8), 0)
    with pytest.raises(InputError, match="version must be one of"):
        double_recursion(build_program("mlp", layers=1, hidden=8, batch=8), 8, "3.x")


def test_double_recursion_cuts_equal_layers_equally() -> None:
    long = double_recursion(build_program("chain", sizes=(64,) * 33, batch=64), 16)
    assert len(set(long.cuts[4:-4])) == 1
