"""Programs that jobs of batch systems run on several hosts, and what their tests read."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: The hosts of scripts/cluster.sh.
HOSTS = tuple(f"node{number}" for number in range(1, 5))
LAUNCH = [sys.executable, "-m", "spmdsim", "launch"]
#: Prints the host of each rank.
PLACES = """\
import os
import numpy as np
from spmdsim import Mesh, Tensor, world

mesh = Mesh((world().size,), ("x",))
total = Tensor.from_global(np.arange(64.0), mesh("x")).to(mesh(None)).full().sum()
print("rank", *world().ranks, "of", world().size, os.uname().nodename, total, flush=True)
"""
#: Prints "ready" on each rank, and runs until the job is ended.
WAITING = """\
import time
from spmdsim import world

world().barrier()
print("ready", flush=True)
time.sleep(600)
"""


def read_hosts(output: str) -> list[str]:
    """Return the host of each rank in rank order, from the lines of PLACES."""
    lines = re.findall(r"^rank (\d+) of (\d+) (\S+) 2016\.0$", output, re.M)
    assert [int(rank) for rank, _, _ in sorted(lines, key=lambda line: int(line[0]))] == list(
        range(len(lines))
    )
    assert {int(size) for _, size, _ in lines} == {len(lines)}, output
    return [host for _, _, host in sorted(lines, key=lambda line: int(line[0]))]


def find_processes() -> list[str]:
    """Return the processes of jobs on all hosts, one line each."""
    find = "pgrep -fa '[w]aiting.py|[e]xamples/cluster/train.py'"
    return [
        line
        for host in HOSTS
        for line in subprocess.run(
            ["ssh", host, find], capture_output=True, text=True, timeout=60, check=False
        ).stdout.splitlines()
    ]
