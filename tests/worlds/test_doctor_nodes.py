"""``doctor`` prints the nodes that worlds have."""

from __future__ import annotations

import json

import pytest
from processes import run_python


@pytest.mark.parametrize("per_node, ranks", [("2", ["ranks 0, 1", "rank 2"]), ("3", ["ranks 0-2"])])
def test_the_doctor_prints_the_nodes_of_worlds(launcher, per_node, ranks):
    words = ("-m", "spmdsim", "launch", "-n", 3, "-m", "spmdsim.launch.diagnosis")
    result = run_python(*words, SPMDSIM_RANKS_PER_NODE=per_node)
    findings = {finding["about"]: finding["found"] for finding in json.loads(result.stdout)}
    texts = [text.partition(": ")[2] for text in findings["nodes"].split("; ")]
    assert texts == ranks
