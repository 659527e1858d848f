"""Bytes that cases predict, where plans depend on the nodes of ranks and on the machine of the world."""

from __future__ import annotations

import pytest

from spmdsim import LockStep, Mesh
from spmdsim.cases.catalogue import catalogue
from spmdsim.cases.inputs import Inputs
from spmdsim.cases.outcome import run_case
from spmdsim.cost import Machine


@pytest.mark.parametrize("nodes, machine", [(2, None), (None, Machine.cluster()), (2, Machine.cluster())])
def test_cases_predict_the_bytes_of_plans_that_cut_axes_where_nodes_end(nodes, machine):
    world = LockStep(8, nodes=nodes)
    world.machine = machine
    cases = list(catalogue([Mesh((2, 4), ("dp", "tp"))], Inputs(shape=(155, 348, 174)), only=("linear",)))
    outcomes = [run_case(case, world) for case in cases]
    assert [outcome.word for outcome in outcomes] == ["ok"] * 6
    collectives = {event.collective for outcome in outcomes for event in outcome.collectives}
    assert ("reduce_scatter" in collectives) == (nodes is not None)
