"""OneFlow's transitions asked for in OneFlow's words, as its own tests write them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from layout_cases import cases

from spmdsim.dialects import oneflow as flow
from spmdsim.dialects.oneflow import boxing
from spmdsim.dialects.oneflow.sbp import as_tuple

V = "redistribution_oneflow"


@pytest.mark.parametrize("case", cases(V, "boxing_1d_same_placement"))
def test_transitions_on_one_axis(case: dict[str, Any]) -> None:
    transition = boxing.transition(case["src"], case["dst"], case["p"], case["logical_bytes"])
    assert " -> ".join(transition.route) == case["oneflow_interpreter"]
    assert transition.cost == case["oneflow_cost"]
    eager = case["collective"].split("(eager)")[0]
    words = re.findall("all_to_all|all_gather|all_reduce|reduce_scatter", eager)
    assert list(transition.collectives) == words
    assert bool(words) is not eager.startswith("none")


def test_dims_that_do_not_divide_go_pairwise() -> None:
    transition = boxing.transition("S0", "B", 2, 140, shape=(5, 7))
    assert transition.route == ("naive-s-to-b",) and transition.collectives == ("send_recv",)


@pytest.mark.parametrize("case", cases(V, "boxing_1d_different_placement"))
def test_transitions_between_placements(case: dict[str, Any]) -> None:
    sizes = case["p_src"], case["p_dst"], case["logical_bytes"]
    assert boxing.cross_placement_cost(case["src"], case["dst"], *sizes) == case["oneflow_cost"]


@pytest.mark.parametrize("case", cases(V, "zero_comm"))
def test_free_transitions(case: dict[str, Any]) -> None:
    assert boxing.zero_comm(case["src"], case["dst"]) is case["zero_comm"]


@pytest.mark.parametrize("case", cases(V, "nd_traffic_exact"))
def test_traffic(case: dict[str, Any]) -> None:
    arguments = case["mesh"], case["src"], case["dst"], case["shape"], case["itemsize"]
    assert boxing.traffic(*arguments) == case["total_bytes"]


@pytest.mark.parametrize("case", cases(V, "nd_boxing_axis_order", "nd_boxing_acyclic"))
def test_order_of_axes(case: dict[str, Any]) -> None:
    order = boxing.axis_order(case["src"], case["dst"])
    assert order == case.get("axis_sequence", order)
    assert (order is not None) is case.get("acyclic", True)


@pytest.mark.parametrize("case", cases(V, "nd_boxing_decompose"))
def test_steps(case: dict[str, Any]) -> None:
    steps = boxing.steps(case["src"], case["dst"])
    wanted = [(s["axis"], as_tuple(s["from"])[0], as_tuple(s["to"])[0]) for s in case["steps"]]
    assert [tuple(step) for step in steps] == wanted
    for step, one in zip(steps, case["steps"]):
        selected = [axis == step.axis for axis in range(len(case["mesh"]))]
        assert list(boxing.subgroup(case["mesh"], 0, selected)) == one["group_of_rank0"]


@pytest.mark.parametrize("case", cases(V, "nd_boxing_generic_steps"))
def test_states_on_the_way(case: dict[str, Any]) -> None:
    assert boxing.generic_states(case["src"], case["dst"]) == [as_tuple(state) for state in case["steps"]]


@pytest.mark.parametrize("case", cases(V, "nd_boxing_shape_expand"))
def test_double_splits(case: dict[str, Any]) -> None:
    arguments = case["shape"], case["mesh"], case["src"], case["dst"]
    if case.get("error"):
        with pytest.raises(ValueError, match="divide"):
            boxing.expand(*arguments)
        return
    wanted = tuple(case["result_shape"]), as_tuple(case["result_src"]), as_tuple(case["result_dst"])
    assert boxing.expand(*arguments) == wanted


@pytest.mark.parametrize("case", cases(V, "sbp_dim_reduce"))
def test_fewer_axes(case: dict[str, Any]) -> None:
    mesh, sbps = boxing.reduce_dims(case["mesh"], case["sbps"], case["shape"])
    assert list(mesh) == case["reduced_mesh"] and list(sbps) == [as_tuple(s) for s in case["reduced_sbps"]]


@pytest.mark.parametrize("case", cases(V, "reshape_sbp"))
def test_reshapes(case: dict[str, Any]) -> None:
    sbp = boxing.reshape(case["in_shape"], case["out_shape"], case["mesh"], case["in_sbp"])
    if "out_sbp" in case:
        assert sbp == as_tuple(case["out_sbp"])
    else:
        assert sbp != as_tuple(case["out_sbp_must_not_be"])


def test_any_spelling_and_what_is_none() -> None:
    spellings: list[Any] = ["(S(0), B)", "S0, B", ["S(0)", "B"], (flow.sbp.split(0), flow.sbp.broadcast)]
    assert all(flow.boxing.zero_comm(one, "(S0, S0)") for one in spellings)
    with pytest.raises(ValueError, match="not on one placement"):
        boxing.zero_comm("(S0, B)", "B")
    with pytest.raises(RuntimeError, match="2 mesh axes"):
        boxing.traffic((2, 2), "S0", "B", (4, 4))
    with pytest.raises(ValueError, match="circle"):
        boxing.steps("(S0, S1)", "(S1, S0)")
