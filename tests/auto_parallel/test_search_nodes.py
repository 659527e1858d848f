"""A search without a machine uses the nodes of the current world."""

from __future__ import annotations

import json

import pytest
from processes import run_python

from spmdsim import LockStep
from spmdsim.auto_parallel.search import search
from spmdsim.cost import Machine, NodeMap

SIZES = {"layers": 1, "hidden": 16, "batch": 8}


def test_the_default_machine_has_the_nodes_of_the_world():
    assert search("mlp", 4, **SIZES).settings.machine == Machine.laptop()
    nodes = NodeMap.of("a:2,b:2", 4)
    with LockStep(4, nodes=nodes):
        assert search("mlp", 4, **SIZES).settings.machine == Machine.cluster().placed(nodes)
        assert search("mlp", 8, **SIZES).settings.machine == Machine.laptop()
        assert search("mlp", 4, machine=Machine.laptop(), **SIZES).settings.machine == Machine.laptop()
    with LockStep(4):
        assert search("mlp", 4, **SIZES).settings.machine == Machine.laptop()


@pytest.mark.parametrize("words, name", [((), "cluster"), (("--machine", "laptop"), "laptop")])
def test_the_command_in_a_job_on_several_nodes(launcher, words, name):
    program = ["search", "--program", "mlp", "--layers", 1, "--hidden", 16, "--batch", 8, "-n", 2, "--json"]
    job = ("-m", "spmdsim", "launch", "-n", 2, "-m", "spmdsim", *program, *words)
    result = run_python(*job, SPMDSIM_RANKS_PER_NODE="1")
    assert result.returncode == 0, result.stdout + result.stderr
    assert json.loads(result.stdout)["machine"] == name
