"""The ranks as processes of this machine: whether one is stopped, which no launcher sees, and the memory they share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from spmdsim.errors import InputError

if TYPE_CHECKING:
    from mpi4py import MPI

#: What becomes of a process: it runs, was stopped by a signal or a debugger, has ended, or its node does not answer.
RUNS, STOPPED, ENDED, SILENT = range(1, 5)
#: Ranks that are treated as a node of their own: 2 makes nodes of ranks 0 and 1, 2 and 3, and so on, on one machine.
NODE_VARIABLE = "SPMDSIM_RANKS_PER_NODE"


class ProcessPlace(NamedTuple):
    """Where a rank runs: processes of one machine, in one namespace, see each other."""

    machine: str
    process: int


def ranks_per_node() -> int | None:
    """How many ranks the environment wants treated as a node; None if the machine alone counts.

    Raises:
        InputError: it is no number of ranks.
    """
    asked = os.environ.get(NODE_VARIABLE)
    if not asked:
        return None
    if not asked.isdecimal() or int(asked) < 1:
        raise InputError(f"{NODE_VARIABLE} is a number of ranks from 1 on, but it is {asked!r}")
    return int(asked)


def here(rank: int) -> ProcessPlace:
    """Where this rank of all runs."""
    each = ranks_per_node()
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        machine = f"{boot} {os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:  # no such system
        machine = ""
    return ProcessPlace(machine if each is None else f"{machine} part {rank // each}", os.getpid())


def state_of(process: int) -> int:
    """Whether a process of this machine runs, is stopped, or has ended."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return ENDED
    except OSError:  # somebody else's
        return RUNS
    try:
        with open(f"/proc/{process}/stat", encoding="ascii", errors="replace") as file:
            state = file.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return RUNS
    return {"T": STOPPED, "t": STOPPED, "Z": ENDED, "X": ENDED}.get(state, RUNS)


class Processes:
    """The ranks of a job that run on this node.

    Args:
        comm: all ranks; collective over it.
    """

    def __init__(self, comm: MPI.Comm) -> None:
        places: list[ProcessPlace] = comm.allgather(mine := here(comm.rank))
        self._of = {
            rank: p.process for rank, p in enumerate(places) if mine.machine and p.machine == mine.machine
        }

    def state(self, rank: int) -> int:
        """Whether a rank runs, as far as this node can tell."""
        return state_of(self._of[rank]) if rank in self._of else RUNS
