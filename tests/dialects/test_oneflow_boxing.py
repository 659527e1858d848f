"""OneFlow's transitions asked for in OneFlow's words, as its own tests write them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from layout_cases import cases
from oneflow_sbp_rules import subgroup

from spmdsim.dialects import oneflow as flow
from spmdsim.dialects.oneflow import boxing
from spmdsim.dialects.oneflow.sbp import as_tuple
from spmdsim.imitations.oneflow.boxing_rules import mesh_of

V = "redistribution_oneflow"


@pytest.mark.parametrize("case", cases(V, "boxing_1d_same_placement"))
def test_transitions_on_one_axis(case: dict[str, Any]) -> None:
    found = boxing.transition(case["src"], case["dst"], case["p"], case["logical_bytes"])
    assert " -> ".join(found.route) == case["oneflow_interpreter"]
    assert found.cost == case["oneflow_cost"]
    eager = case["collective"].split("(eager)")[0]
    words = re.findall("all_to_all|all_gather|all_reduce|reduce_scatter", eager)
    assert list(found.collectives) == words
    assert bool(words) is not eager.startswith("none")


def test_dims_that_do_not_divide_go_pairwise() -> None:
    found = boxing.transition("S0", "B", 2, 140, shape=(5, 7))
    assert found.route == ("naive-s-to-b",) and found.collectives == ("send_recv",)


@pytest.mark.parametrize("case", cases(V, "nd_traffic_exact"))
def test_traffic(case: dict[str, Any]) -> None:
    given = case["mesh"], case["src"], case["dst"], case["shape"], case["itemsize"]
    assert boxing.traffic(*given) == case["total_bytes"]


@pytest.mark.parametrize("case", cases(V, "nd_boxing_decompose"))
def test_steps(case: dict[str, Any]) -> None:
    found = boxing.steps(case["src"], case["dst"])
    wanted = [(s["axis"], as_tuple(s["from"])[0], as_tuple(s["to"])[0]) for s in case["steps"]]
    assert [tuple(step) for step in found] == wanted
    for step, one in zip(found, case["steps"]):
        selected = [axis == step.axis for axis in range(len(case["mesh"]))]
        assert list(subgroup(mesh_of(case["mesh"]), 0, selected)) == one["group_of_rank0"]


def test_any_spelling_and_what_is_none() -> None:
    spellings: list[Any] = ["(S(0), B)", "S0, B", ["S(0)", "B"], (flow.sbp.split(0), flow.sbp.broadcast)]
    assert {flow.boxing.traffic((2, 2), one, "(S0, S0)", (4, 4)) for one in spellings} == {0}
    with pytest.raises(ValueError, match="not on one placement"):
        boxing.steps("(S0, B)", "B")
    with pytest.raises(RuntimeError, match="2 mesh axes"):
        boxing.traffic((2, 2), "S0", "B", (4, 4))
    with pytest.raises(ValueError, match="circle"):
        boxing.steps("(S0, S1)", "(S1, S0)")
