"""The machine and the process of a rank, and whether the process runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from spmdsim.settings import RANKS_PER_NODE
from spmdsim.shutdown.processes import read_status

#: States of a process: it runs, was stopped by a signal or a debugger, has ended, or its node does not answer.
RUNNING, STOPPED, ENDED, SILENT = range(1, 5)


class ProcessPlace(NamedTuple):
    """Machine and id of a process. Processes of one machine and one namespace see each other."""

    machine: str
    process: int


def find_own_place(rank: int) -> ProcessPlace:
    """Return the place of this process, which is a rank of the job.

    The machine is empty if it has no identity.
    """
    ranks_per_node = RANKS_PER_NODE.read()
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        machine = f"{boot} {os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:  # no such system
        machine = ""
    node_text = "" if ranks_per_node is None else f" part {rank // ranks_per_node}"
    return ProcessPlace(machine + node_text, os.getpid())


def find_process_state(process: int) -> int:
    """Return the state of a process of this machine: ``RUNNING``, ``STOPPED`` or ``ENDED``."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return ENDED
    except OSError:  # the process belongs to another user
        return RUNNING
    status = read_status(process)
    return (
        RUNNING
        if status is None
        else {"T": STOPPED, "t": STOPPED, "Z": ENDED, "X": ENDED}.get(status.state, RUNNING)
    )
