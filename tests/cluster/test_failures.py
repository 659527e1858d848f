"""Failures on several hosts: the job prints rank, host and cause, and has the exit code of the rank."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

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
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as starter:
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
