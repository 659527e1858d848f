"""Local checkpoints: each node keeps the shards of its ranks in a folder of its own."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("mpi4py")

from processes import run_python

from spmdsim import LockStep, Mesh, Tensor
from spmdsim.arrays.checkpoint import load, save

PROGRAM = """\
import sys
from pathlib import Path
import numpy as np
from spmdsim import Mesh, Tensor, world
from spmdsim.arrays.checkpoint import load, save
from spmdsim.errors import SpmdError
case, folder, w = sys.argv[1], Path(sys.argv[2]), world()
own = folder if case == "one folder" else folder / str(w.nodes.nodes[w.rank])
if case == "not writable" and w.rank == 2:
    own.parent.mkdir()
    own.touch()
mesh = Mesh((2, 2), ("a", "b"))
tensors = {
    name: Tensor.from_global(np.arange(24.0).reshape(6, 4) + number, layout, w)
    for number, (name, layout) in enumerate({"w": mesh("a", "b"), "v": mesh("b", None), "r": mesh(None, None)}.items())
}
if case == "partial":
    mesh_of_two = Mesh((2,), ("x",), ranks=(1, 2))
    tensors = {"w": Tensor.from_global(np.arange(8.0), mesh_of_two("x"), w)}
try:
    save(own, tensors, local=case != "not local")
    again = load(own, w)
    print("SAME", all((again[name].full() == tensors[name].full()).all() for name in tensors), flush=True)
    if case == "moved":
        load(own, w, {"w": mesh("b", "a")})
except SpmdError as error:
    print("REFUSED", error, flush=True)
"""


@pytest.fixture
def run(tmp_path, launcher):
    """Return a function that runs a case on two nodes of two ranks, and returns its output."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)

    def run(case):
        words = ("-m", "spmdsim", "launch", "-n", 4, script, case, tmp_path / "checkpoint")
        result = run_python(*words, SPMDSIM_RANKS_PER_NODE="2")
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    return run


@pytest.mark.parametrize("case", ["whole", "partial"])
def test_nodes_with_folders_of_their_own_save_and_load(run, tmp_path, case):
    for _ in range(2):  # the second save replaces the first
        assert run(case).count("SAME True") == 4
    hosts = set()
    for node in (0, 1):
        folder = tmp_path / "checkpoint" / str(node)
        manifest = json.loads((folder / "manifest.json").read_text())
        (data,) = [path for path in folder.iterdir() if path.is_dir()]
        assert data.name == manifest["data"]
        shards = [shard for entry in manifest["tensors"].values() for shard in entry["shards"]]
        assert {shard["file"] for shard in shards if "host" not in shard} <= {p.name for p in data.iterdir()}
        hosts |= {shard["host"] for shard in shards if "host" in shard}
    assert len(hosts) == 2


@pytest.mark.parametrize(
    "case, words",
    [
        ("moved", ["elements ", " of 'w' are saved on ", " only; load a local checkpoint on ranks that are placed"]),
        ("one folder", ["rank ", " on ", " cannot write to ", ": nodes see one folder, so leave out local=True"]),
        ("not writable", ["rank 2 on ", " cannot write to ", ": File exists"]),
        ("not local", ["rank 2 on ", " has no ", ", which rank 0 on ", "local=True keeps a checkpoint on each node"]),
    ],
)  # fmt: skip
def test_refusals_name_hosts(run, case, words):
    lines = [line for line in run(case).splitlines() if "REFUSED" in line]
    assert len(lines) == 4 and all(word in line for word in words for line in lines), lines
    assert all(line.count("program.py") == 1 for line in lines)


def test_one_process_has_one_folder(tmp_path):
    world = LockStep(4, nodes=2)
    tensor = Tensor.from_global(np.arange(8.0), Mesh((4,), ("x",))("x"), world)
    save(tmp_path, {"x": tensor}, local=True)
    assert (load(tmp_path, LockStep(4))["x"].full() == np.arange(8.0)).all()
