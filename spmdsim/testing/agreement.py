"""The ranks agree on what happened to a test, with a deadline, so that nobody waits for ever.

One small non-blocking all-gather on a communicator of our own per phase of a test. When a rank has not come by
the deadline, those who wait call the roll by point-to-point messages, name the missing ranks and end the job.
"""

from __future__ import annotations

import sys
import time
import zlib
from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from spmdsim.ending.stop import FORWARD_SECONDS

if TYPE_CHECKING:
    from mpi4py import MPI

PASSED, SKIPPED, FAILED = range(3)
PHASES = ("collection", "setup", "call", "teardown", "end")

SPINS = 200
"""Polls before the first sleep: when all ranks come together nobody sleeps."""

ROLL_CALL, HERE = 1, 2
"""Tags of the question "who is here?" and of its answer."""

ROLL_CALL_SECONDS = 0.5

ABORTED = 3
"""Exit code when the job had to be ended: the one pytest has for its own errors."""


class Agreement:
    """The meeting point of all ranks."""

    def __init__(
        self,
        comm: MPI.Comm,
        deadline: float,
        deadline_failed: float,
        say: Callable[[str], None],
    ) -> None:
        self.comm = comm.Dup()
        self.rank: int = comm.rank
        self.size: int = comm.size
        self.deadline = deadline
        self.deadline_failed = min(deadline, deadline_failed)
        self.say = say

    def meet(self, what: str, phase: str, outcome: int, message: str = "") -> list[int]:
        """Exchange outcomes."""
        mine = array("q", [zlib.crc32(what.encode()), PHASES.index(phase), outcome])
        every = array("q", bytes(8 * 3 * self.size))
        request = self.comm.Iallgather(mine, every)
        seconds = self.deadline_failed if outcome == FAILED else self.deadline
        if not self._wait(request, seconds):
            self._missing(what, phase, seconds, message)
        records = [tuple(every[3 * r : 3 * r + 3]) for r in range(self.size)]
        if any(record[:2] != records[0][:2] for record in records):
            self._astray(what, phase, records, message)
        return [record[2] for record in records]

    def texts(self, text: str) -> list[str]:
        """The texts of all ranks; to be called by all of them right after they have met."""
        gathered: list[str] = self.comm.allgather(text)
        return gathered

    def _wait(self, request: Any, seconds: float) -> bool:
        """Poll until done or late, answering anybody who calls the roll meanwhile."""
        for _ in range(SPINS):
            if request.Test():
                return True
        end = time.monotonic() + seconds
        while not request.Test():
            if time.monotonic() > end:
                return False
            self._answer(late=False)
            time.sleep(0.0005)
        return True

    def _answer(self, late: bool) -> None:
        for rank in range(self.size):
            if self.comm.iprobe(source=rank, tag=ROLL_CALL):
                self.comm.recv(source=rank, tag=ROLL_CALL)
                self.comm.isend(late, dest=rank, tag=HERE)

    def _roll_call(self) -> dict[int, bool]:
        """Who is waiting here too, and whether that rank is late itself."""
        others = [rank for rank in range(self.size) if rank != self.rank]
        requests = [self.comm.isend(None, dest=rank, tag=ROLL_CALL) for rank in others]
        here = {self.rank: True}
        end = time.monotonic() + ROLL_CALL_SECONDS
        while time.monotonic() < end and len(here) < self.size:
            self._answer(late=True)
            for rank in others:
                if rank not in here and self.comm.iprobe(source=rank, tag=HERE):
                    here[rank] = self.comm.recv(source=rank, tag=HERE)
            time.sleep(0.001)
        del requests  # kept until here: a message whose request is gone may be lost
        return here

    def _missing(self, what: str, phase: str, seconds: float, message: str) -> NoReturn:
        here = self._roll_call()
        away = [rank for rank in range(self.size) if rank not in here]
        if message:
            self.say(f"rank {self.rank} of {self.size}: {what} ({phase}) failed\n{message}")
        if self.rank == min(rank for rank, late in here.items() if late):
            self.say(
                f"{what} ({phase}): ranks {away} of {self.size} did not come within {seconds:g} s "
                f"to where ranks {sorted(here)} wait; the job ends"
            )
            self.abort()
        time.sleep(2 * ROLL_CALL_SECONDS)  # let the rank that speaks end the job
        self.abort()

    def _astray(self, what: str, phase: str, records: list[Any], message: str) -> NoReturn:
        if message:
            self.say(f"rank {self.rank} of {self.size}: {what} ({phase}) failed\n{message}")
        together = [r for r, record in enumerate(records) if record[:2] == records[self.rank][:2]]
        if self.rank == min(together):
            self.say(f"ranks {together} of {self.size} are at {what} ({phase}), others are not")
        time.sleep(ROLL_CALL_SECONDS)  # let every group say where it is
        self.abort()

    def abort(self, code: int = ABORTED) -> NoReturn:
        """End all ranks now."""
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(FORWARD_SECONDS)
        self.comm.Abort(code)
        raise SystemExit(code)
