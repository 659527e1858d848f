"""The ranks as processes of this machine: whether one is stopped, which no launcher sees, and the memory they share."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from spmdsim.ending.stop import end_job
from spmdsim.sides import name_ranks

if TYPE_CHECKING:
    from mpi4py import MPI

#: What Linux calls a process that was stopped by a signal or by a debugger.
STOPPED = ("T", "t")


#: Exit code of a job that waits in vain: that of every mistake of the user's.
MISTAKE = 2
#: Memory that MPICH's ranks share, which a job leaves behind if it does not end well.
SEGMENT = "/dev/shm/mpich_shm_"


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

    def require_running(self, ranks: Iterable[int], where: str) -> None:
        """End the job if some of these ranks are stopped, by a signal or by a debugger: they will not come ``where``."""
        stopped = sorted(filter(self._is_stopped, ranks))
        if stopped:
            are = "is" if len(stopped) == 1 else "are"
            end_job(f"{name_ranks(stopped)} {are} stopped and did not come {where}, the job ends", MISTAKE)

    def _is_stopped(self, rank: int) -> bool:
        try:
            text = Path(f"/proc/{self._of[rank]}/stat").read_text()
            return text.rpartition(")")[2].split()[0] in STOPPED
        except (KeyError, OSError, IndexError):
            return False


def unlink_segments() -> None:
    """Remove the names of the memory that MPICH's ranks share: all have it, and it goes with the last of them.

    For when all ranks have started MPI. Open MPI's ranks look for theirs by name later on, and remove it themselves.
    """
    with suppress(OSError):
        for line in Path("/proc/self/maps").read_text().splitlines():
            name = line.split()[-1]
            if name.startswith(SEGMENT):
                with suppress(OSError):  # another rank was quicker
                    os.unlink(name)
