"""The other ranks as processes of this machine: whether one is stopped, which no launcher sees."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from mpi4py import MPI

#: What Linux calls a process that was stopped by a signal or by a debugger.
STOPPED = ("T", "t")


class Place(NamedTuple):
    """Where a rank runs: processes of one machine, in one namespace, see each other."""

    machine: str
    process: int


def here() -> Place:
    """Where this rank runs."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return Place(f"{boot} {os.stat('/proc/self/ns/pid').st_ino}", os.getpid())
    except OSError:  # no such system
        return Place("", os.getpid())


class Processes:
    """The ranks of a job that run on this machine.

    Args:
        comm: all ranks; collective over it.
    """

    def __init__(self, comm: MPI.Comm) -> None:
        places: list[Place] = comm.allgather(mine := here())
        self._of = {
            rank: p.process for rank, p in enumerate(places) if mine.machine and p.machine == mine.machine
        }

    def is_stopped(self, rank: int) -> bool:
        """Whether a rank is known to be stopped, by a signal or by a debugger."""
        try:
            text = Path(f"/proc/{self._of[rank]}/stat").read_text()
            return text.rpartition(")")[2].split()[0] in STOPPED
        except (KeyError, OSError, IndexError):
            return False
