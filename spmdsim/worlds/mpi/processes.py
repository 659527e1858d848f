"""The other ranks as processes of this machine: which of them died without a word, and which are stopped.

Launchers end a job when a rank dies badly, but not all do where it dies well, as by ``os._exit(0)``, and none sees that
a rank is stopped. So each rank has the system tell it of the death of every other one on its machine.
"""

from __future__ import annotations

import os
import select
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from spmdsim.ending.stop import end_job

if TYPE_CHECKING:
    from mpi4py import MPI

#: Seconds that the launcher has to end the job by itself after a rank's death, and each rank for the one before it.
GRACE = 2.0
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


def state(process: int) -> str:
    """The letter for what a process does, as ``ps`` shows it; empty if there is none."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


class Processes:
    """The ranks of a job on this machine, watched until :meth:`stop`.

    Args:
        comm: all ranks; collective over it.
    """

    def __init__(self, comm: MPI.Comm) -> None:
        mine = here()
        places: list[Place] = comm.allgather(mine)
        self.rank, self.size = comm.rank, comm.size
        self.processes = {
            rank: place.process
            for rank, place in enumerate(places)
            if rank != comm.rank and place.machine == mine.machine and mine.machine
        }
        self._stopped = threading.Event()
        self._descriptors: dict[int, int] = {}
        with suppress(OSError, AttributeError):  # an old kernel, another system: launchers see most deaths
            for rank, process in self.processes.items():
                self._descriptors[os.pidfd_open(process)] = rank
        if self._descriptors:
            threading.Thread(target=self._look, name="spmdsim processes", daemon=True).start()

    def stop(self) -> None:
        """From now on the others may end when they like."""
        self._stopped.set()

    def is_stopped(self, rank: int) -> bool:
        """Whether a rank is known to be stopped, by a signal or by a debugger."""
        return rank in self.processes and state(self.processes[rank]) in STOPPED

    def _look(self) -> None:
        poll = select.poll()
        for descriptor in self._descriptors:
            poll.register(descriptor, select.POLLIN)
        died = poll.poll()
        # One after the other, so that one speaks; and none if the launcher, or the end of the program, is quicker.
        first = self._descriptors[died[0][0]]
        earlier = [
            rank for rank in range(self.rank) if rank not in self.processes or state(self.processes[rank])
        ]
        if self._stopped.wait(GRACE * (1 + len(earlier))):
            return
        process = self.processes[first]
        end_job(
            f"rank {first} of {self.size} (process {process}) ended in the middle of the program, the job ends",
            1,
        )
