"""Start ranks on several hosts: placements, host files, variables, and commands that start ranks themselves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter

import pytest

pytestmark = pytest.mark.cluster

PLACES = """\
import os, sys
from spmdsim import Mesh, MPIWorld, Tensor
import numpy as np

world = MPIWorld()
rank, = world.ranks
mesh = Mesh((world.size,), ("x",))
whole = np.arange(world.size * 8.0).reshape(world.size, 8)
total = Tensor.from_global(whole, mesh("x", None), world).to(mesh(None, None)).full().sum()
assert total == whole.sum()
print(rank, os.uname().nodename, *(os.environ.get(name) for name in sys.argv[1:]), flush=True)
world.close()
"""


def read_places(result: subprocess.CompletedProcess[str]) -> dict[int, list[str]]:
    """Return what each rank of PLACES printed: its host, and the values of the variables."""
    assert result.returncode == 0, result.stderr
    return {int(rank): values for rank, *values in map(str.split, result.stdout.splitlines())}


@pytest.mark.parametrize(
    "words, counts",
    [
        (["--hosts", "node1:2,node2:2,node3:2,node4:2"], [2, 2, 2, 2]),
        (["-n", "3", "--hosts", "node1:2,node2:2"], [2, 1, 0, 0]),
        (["-n", "7", "--hosts", "node2,node4:3"], [0, 2, 0, 5]),
        (["--hosts", "node3:2,node4"], [0, 0, 2, 1]),
    ],
)
def test_ranks_fill_the_slots_of_the_hosts(launch, words, counts):
    places = read_places(launch(PLACES, *words))
    assert sorted(places) == list(range(sum(counts)))
    hosts = Counter(host for (host,) in places.values())
    assert [hosts[f"node{number}"] for number in range(1, 5)] == counts


@pytest.mark.parametrize("line", ["{} slots=1", "{}:1", "{}"])
def test_a_host_file_in_each_notation(launch, shared_folder, line):
    file = shared_folder / "hosts"
    file.write_text("# two hosts\n" + "".join(line.format(host) + "\n" for host in ("node1", "node3")))
    places = read_places(launch(PLACES, "--hostfile", str(file)))
    assert places == {0: ["node1"], 1: ["node3"]}


def test_variables_and_settings_reach_all_hosts(launch):
    names = ("SPMDSIM_DEADLINE", "DATA_PATH", "OMP_NUM_THREADS")
    result = launch(PLACES, "--hosts", "node1:2,node2", arguments=names, DATA_PATH="/data/set")
    values = [values[1:] for values in read_places(result).values()]
    assert values[0][:2] == ["20", "/data/set"]
    assert values == [values[0]] * 3  # BLAS threads, too: results depend on their number


def test_commands_start_their_ranks_on_hosts(shared_folder):
    hosts = "node1:2,node2:2,node3:2,node4:2"
    words = ["run", "--hosts", hosts, "--only", "linear", "--mesh", "dp=2,tp=4"]  # Nodes cut the axis tp.
    result = subprocess.run(
        [sys.executable, "-m", "spmdsim", *words],
        cwd=shared_folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    assert "6 of 6 cases hold on 8 ranks" in result.stdout


def test_an_unknown_host_is_named(launch):
    result = launch(PLACES, "--hosts", "node1,node9")
    assert result.returncode not in (0, None) and "node9" in result.stderr


def test_mpirun_of_open_mpi_that_passes_no_variables(shared_folder, launcher):
    if launcher.vendor != "Open MPI":
        pytest.skip("other launchers pass all variables")
    script = shared_folder / "program.py"
    script.write_text("import spmdsim\nspmdsim.world()\n")
    command = [launcher.path, "-n", "2", "--host", "node1,node2", sys.executable, str(script)]
    environment = {**os.environ, "SPMDSIM_DEADLINE": "20", **launcher.choose_variables()}
    result = subprocess.run(
        command, env=environment, capture_output=True, text=True, errors="replace", timeout=120
    )
    assert result.returncode != 0
    assert "deadline (SPMDSIM_DEADLINE) is 20.0 on rank 0 (node1), 60.0 on rank 1 (node2)" in result.stderr
    assert "mpirun -x SPMDSIM_DEADLINE" in result.stderr


def test_doctor_has_a_row_for_each_host(shared_folder):
    words = ["doctor", "--json", "--hosts", "node1:2,node3:3"]
    host_rows = {}
    for folder in (shared_folder, "/root"):  # /root is not shared
        result = subprocess.run(
            [sys.executable, "-m", "spmdsim", *words], cwd=folder, capture_output=True, text=True, timeout=120
        )
        rows = {row["about"]: row for row in json.loads(result.stdout)["findings"]}
        assert rows["trial on 5 ranks"]["state"] == "ok", result.stdout
        host_rows[folder] = rows["host node1"], rows["host node3"]
    first, second = host_rows[shared_folder]
    assert first["found"].startswith("ranks 0, 1; ") and "eth0 10.77.0.1" in first["found"]
    assert second["found"].startswith("ranks 2, 3, 4; ") and "eth0 10.77.0.3" in second["found"]
    assert all("another working folder" not in row["found"] for row in (first, second))
    first, second = host_rows["/root"]
    assert "another working folder" not in first["found"] and "another working folder" in second["found"]
