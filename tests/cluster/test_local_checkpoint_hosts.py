"""Checkpoints on several hosts without a shared folder."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.cluster

PROGRAM = """\
import sys
import numpy as np
from spmdsim import Mesh, Tensor, world
from spmdsim.arrays import checkpoint
from spmdsim.errors import InputError
local, w, mesh = sys.argv[1] == "local", world(), Mesh((2, 2), ("a", "b"))
x = Tensor.from_global(np.arange(24.0).reshape(6, 4), mesh("a", "b"), w)
try:
    checkpoint.save("/tmp/checkpoint-of-hosts", {"x": x}, local=local)
    same = (checkpoint.load("/tmp/checkpoint-of-hosts", w)["x"].full() == x.full()).all()
    print("SAME", same, flush=True)
    checkpoint.load("/tmp/checkpoint-of-hosts", w, {"x": mesh("b", "a")})
except InputError as error:
    print("REFUSED", error, flush=True)
"""


@pytest.mark.parametrize("hosts", ["node1:2,node2:2", "node1:1,node2:1,node3:1,node4:1"])
def test_folders_that_are_not_shared(launch, hosts):
    for _ in range(2):  # the second save replaces the first
        result = launch(PROGRAM, "-n", "4", "--hosts", hosts, arguments=("local",))
        assert result.stdout.count("SAME True") == 4, result.stdout + result.stderr
        assert "of 'x' are saved on node" in result.stdout, result.stdout + result.stderr
    result = launch(PROGRAM, "-n", "4", "--hosts", hosts, arguments=("shared",))
    line = next(line for line in result.stdout.splitlines() if "REFUSED" in line)
    assert " on node2 has no " in line and "which rank 0 on node1 made" in line, result.stdout
