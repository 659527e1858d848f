"""Calibrate a machine on several hosts: placements, levels, and the time limit."""

from __future__ import annotations

import json
import os
import re
import sys

import pytest

from spmdsim.launch.mpi import find_launcher

pytestmark = pytest.mark.cluster

WORDS = ["-m", "spmdsim", "collective", "calibrate", "-e", "64K", "--seconds", "5", "-o", "machine.json"]
IN_TURN = {
    "MPICH": ["-ppn", "1", "-hosts", "node1,node2"],
    "Open MPI": ["--host", "node1:2,node2:2", "--map-by", "node"],
}


@pytest.mark.parametrize(
    "hosts, nodes",
    [
        ("node1:2,node2:2", "node1: ranks 0, 1; node2: ranks 2, 3"),
        ("node1,node2:2", "node1: rank 0; node2: ranks 1, 2"),
        ("in turn", "node1: ranks 0, 2; node2: ranks 1, 3"),
    ],
)
def test_calibrate_ends_in_time_and_finds_both_levels(shared_folder, run_command, hosts, nodes):
    """Ranks of these hosts may share cores, so the fit may be refused."""
    variables: dict[str, str] = {}
    if hosts == "in turn":
        launcher = find_launcher()
        path = f"PYTHONPATH={os.pathsep.join(filter(None, sys.path))}"  # Open MPI does not pass it on.
        command = [launcher.path, "-n", "4", *IN_TURN[launcher.vendor], "env", path, sys.executable, *WORDS]
        variables = launcher.choose_variables()
    else:
        command = [sys.executable, *WORDS, "--hosts", hosts]
    result = run_command(command, **variables)
    assert f"nodes: {nodes}\n" in result.stderr
    file = shared_folder / "machine.json"
    if result.returncode:
        assert re.search(
            "measurements contradict the fit, no machine|--seconds must be longer", result.stderr
        )
        assert not file.exists()
        return
    assert "message inside a node: fit error" in result.stdout
    data = json.loads(file.read_text())
    assert data["ranks_per_node"] == 2 and data["_nodes"] == nodes
    assert data["intra"]["alpha"] < data["alpha"]
    assert data["_message_intervals"] and data["_inside_intervals"]
