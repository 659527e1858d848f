"""Failures on several hosts: the job prints rank, host and cause, and has the exit code of the rank."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from processes import hear_ctrl_c

pytestmark = pytest.mark.cluster

EVERYWHERE = "node1:2,node2:2,node3:2,node4:2"
FAILING = """\
import os, signal, sys
from spmdsim import MPIWorld

world = MPIWorld()
world.barrier()
if 5 in world.ranks:
    CAUSE
world.barrier()
"""


def find_processes(host: str) -> str:
    """Return the processes of jobs on a host, one line each."""
    find = ["ssh", host, "pgrep", "-fa", "[s]pmdsim.launch.bootstrap"]
    return subprocess.run(find, capture_output=True, text=True).stdout


@pytest.mark.parametrize(
    "cause, code, message",
    [
        ("raise ValueError('broken')", 1, "rank 5 of 8 on node3 stopped, the job ends:\n"),
        ("sys.exit(3)", 3, "rank 5 of 8 on node3 stopped, the job ends:\nsys.exit(3)"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "rank 5 of 8 was killed by signal 9 (SIGKILL"),
        ("os._exit(4)", 4, "rank 5 of 8 ended with exit code 4 without a word on node3"),
    ],
)
def test_a_rank_that_fails_is_named_with_its_host(launch, cause, code, message):
    result = launch(FAILING.replace("CAUSE", cause), "--hosts", EVERYWHERE)
    assert result.returncode == code, result.stderr
    assert message in result.stderr
    assert cause.partition("(")[0] != "raise ValueError" or "ValueError: broken" in result.stderr
    assert {host: find_processes(host) for host in ("node1", "node2", "node3", "node4")} == dict.fromkeys(
        ("node1", "node2", "node3", "node4"), ""
    )


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM], ids=lambda kind: kind.name)
def test_a_job_that_the_user_ends(launch, shared_folder, kind):
    script = shared_folder / "ended.py"
    script.write_text(
        FAILING.replace("CAUSE", "print('ready', flush=True)\nwhile True:\n    world.barrier()").replace(
            "5 in", ""
        )
    )
    command = [sys.executable, "-m", "spmdsim", "launch", "--hosts", "node1:2,node2:2", str(script)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=hear_ctrl_c
    ) as starter:
        try:
            assert starter.stdout is not None and starter.stdout.readline() == "ready\n"
            starter.send_signal(kind)
            _, error = starter.communicate(timeout=60)
        finally:
            starter.kill()
    assert starter.returncode == 128 + kind
    assert ("interrupted" if kind == signal.SIGINT else "ended by SIGTERM") in error.splitlines()[-1]
    assert "the job ends" not in error
    assert find_processes("node2") == ""
    # MPICH kills the supervisors on other hosts: the next job removes the notes that they leave there.
    assert launch("import spmdsim\n", "--hosts", "node1,node2").returncode == 0
    find_folders = ["ssh", "node2", "ls -d /tmp/spmdsim-*"]
    assert subprocess.run(find_folders, capture_output=True, text=True).stdout == ""


def test_a_program_that_one_host_lacks(launch, tmp_path):
    script = tmp_path / "only_here.py"  # /tmp is not shared
    script.write_text("import spmdsim\n")
    result = launch("", "--hosts", "node1:2,node2", str(script))
    assert result.returncode == 2
    assert f"error: there is no script '{script}' on node2" in result.stderr


def test_a_folder_of_logs_that_one_host_lacks(launch, tmp_path):
    result = launch(
        FAILING.replace("CAUSE", "pass"), "--hosts", "node1:2,node2", "--log-dir", str(tmp_path / "logs")
    )
    assert result.returncode == 2
    assert f"rank 2 cannot write its log {tmp_path}/logs/worker_2.log on node2: No such file" in result.stderr


# -- errors of the agreement ----------------------------------------------------------------------------------

DIFFERING = """\
import sys, time
import numpy as np
from spmdsim import Mesh, MPIWorld, Tensor

world, case = MPIWorld(), sys.argv[1]
mesh = Mesh((4,), ("x",))
x = Tensor.from_global(np.arange(64.0).reshape(8, 8), mesh("x", None), world)
if 2 in world.ranks and case == "late":
    time.sleep(600)
if 2 in world.ranks and case == "leaves":
    sys.exit()
x.to(mesh(None, "x") if 2 in world.ranks and case == "differs" else mesh(None, None)).full()
"""


@pytest.mark.parametrize(
    "case, words",
    [
        ("differs", ["rank 2 on node2: all_to_all over", "ranks 0, 1, 3 on node1, node2: all_gather over"]),
        ("late", ["rank 2 on node2 did not come within 8 s to call"]),
        ("leaves", ["rank 2 on node2 will not come to call", "rank 2 left the program"]),
    ],
)
def test_an_error_between_ranks_names_hosts_once(launch, case, words):
    result = launch(DIFFERING, "--hosts", "node1:2,node2:2", arguments=(case,), SPMDSIM_DEADLINE="8")
    assert result.returncode == 2
    assert [result.stderr.count(text) for text in words] == [1] * len(words), result.stderr
    assert result.stderr.count("program.py: error") <= 1


# -- a host that is cut off -----------------------------------------------------------------------------------

WORKING = """\
import sys
import numpy as np
from spmdsim import Mesh, MPIWorld, Tensor

world = MPIWorld()
mesh = Mesh((8,), ("x",))
x = Tensor.from_global(np.arange(64.0).reshape(8, 8), mesh("x", None), world)
if 0 in world.ranks:
    print("ready", flush=True)
while True:
    x.to(mesh(None, None)) if sys.argv[1] == "collective" else world.barrier()
"""


@pytest.fixture
def cut_off() -> Iterator[Callable[[str], None]]:
    """Disconnects a host from the network for 40 s; the test ends when it is back."""
    hosts = []

    def cut(host: str) -> None:
        hosts.append(host)
        words = "ip link set eth0 down; sleep 40; ip link set eth0 up"
        subprocess.run(["ssh", host, f"nohup sh -c 'sleep 0.2; {words}' >/dev/null 2>&1 &"], check=True)

    yield cut
    for host in hosts:
        while subprocess.run(
            ["ssh", "-o", "ConnectTimeout=2", host, "true"], stderr=subprocess.DEVNULL
        ).returncode:
            time.sleep(1)


@pytest.mark.parametrize("call", ["collective", "barrier"])
def test_a_host_that_drops_off_the_network(shared_folder, cut_off, call):
    script = shared_folder / "program.py"
    script.write_text(WORKING)
    command = [sys.executable, "-m", "spmdsim", "launch", "--hosts", EVERYWHERE, str(script), call]
    environment = {**os.environ, "SPMDSIM_DEADLINE": "10"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env=environment, **pipes) as starter:
        try:
            assert starter.stdout is not None and starter.stdout.readline() == "ready\n"
            cut_off("node3")
            _, error = starter.communicate(timeout=60)
        finally:
            starter.kill()
    assert starter.returncode == 2, error
    reports = [line for line in error.splitlines() if "no network to" in line or "did not come" in line]
    assert len(reports) == 1 and "no network to ranks 4, 5 on node3 for" in reports[0], error
    assert not [host for host in ("node1", "node2", "node4") if host in reports[0]], error
    time.sleep(10)
    assert {host: find_processes(host) for host in ("node1", "node2", "node4")} == dict.fromkeys(
        ("node1", "node2", "node4"), ""
    )
