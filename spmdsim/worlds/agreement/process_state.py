"""The machine and the process of a rank, and whether the process runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from spmdsim.settings import RANKS_PER_NODE
from spmdsim.shutdown.processes import read_status

#: States of a process: it runs, was stopped by a signal or a debugger, has ended, its node does not answer although its
#: host confirms what it receives, or its host is not reachable.
RUNNING, STOPPED, ENDED, SILENT, LOST = range(1, 6)
#: States by the letters of ``ps``; all others are running processes.
_STATES = {"T": STOPPED, "t": STOPPED, "Z": ENDED, "X": ENDED}


class ProcessPlace(NamedTuple):
    """Machine and id of a process. Processes of one machine and one namespace see each other."""

    machine: str
    process: int


def find_own_place(rank: int) -> ProcessPlace:
    """Return the machine and the process id of this process, which is rank ``rank`` of the job.

    The machine is the id of the system's boot and the namespace of its process ids. It is empty if /proc does not tell
    them. If ``SPMDSIM_RANKS_PER_NODE`` is set, " part" and the number of the rank's node are appended, so that one
    machine plays several nodes.

    Raises:
        SpmdError: If the setting is wrong.
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
    """Return the state of a process of this machine: ``RUNNING``, ``STOPPED`` or ``ENDED``.

    A zombie has ended; a process that a signal or a debugger stopped is ``STOPPED``. A process of another user, or one
    whose status cannot be read, counts as ``RUNNING``.

    Args:
        process: the process id.
    """
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return ENDED
    except OSError:  # the process belongs to another user
        return RUNNING
    status = read_status(process)
    return RUNNING if status is None else _STATES.get(status.state, RUNNING)
