"""A rank that waits too long in a call that was not compared says in which one, and ends the job.

Inside a collective of MPI's a rank can neither look around nor raise. A thread does it in its place: it sees that the
call is still the same after the deadline, prints it, leaves the other waiting ranks a moment to print theirs, and
aborts. What the ranks print shows where they part.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from mpi4py import MPI

from spmdsim.trace.recorder import source_line

if TYPE_CHECKING:
    from spmdsim.worlds.mpi.check import Calls

#: Looks per deadline, and the seconds between two looks.
LOOKS, SHORTEST, LONGEST = 4, 0.05, 5.0
#: Exit code of a job that ends so: that of every mistake of the user's.
CODE = 2


class Watch:
    """Looks after the calls of a world's groups until it is stopped.

    Args:
        comm: the world; it is aborted.
        deadline: seconds that a call may take.
        calls: the calls of each group; they change while this looks.
    """

    def __init__(self, comm: MPI.Comm, deadline: float, calls: Mapping[tuple[int, ...], Calls]) -> None:
        self._comm, self._rank, self._deadline, self._calls = comm, comm.Get_rank(), deadline, calls
        self._tick = max(min(deadline / LOOKS, LONGEST), SHORTEST)
        self._stopped, self._waiter = threading.Event(), threading.get_ident()
        threading.Thread(target=self._look, name="spmdsim waits", daemon=True).start()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()

    def _look(self) -> None:
        seen: tuple[Calls, int] | None = None
        since = 0.0
        while not self._stopped.wait(self._tick):
            inside = next((calls for calls in list(self._calls.values()) if calls.inside is not None), None)
            now = None if inside is None else (inside, inside.number)
            if now is None or now != seen:
                seen, since = now, time.monotonic()
            elif time.monotonic() - since > self._deadline and (text := self._text(now[0])):
                self._end(text)

    def _text(self, calls: Calls) -> str | None:
        check, number = calls.inside, calls.number - 1
        if check is None:
            return None
        place = source_line(sys._current_frames().get(self._waiter)) or "an unknown place"
        return (
            f"rank {self._rank} waits for more than {self._deadline:g} s for others in collective {number} of ranks "
            f"{', '.join(map(str, calls.members))}: {check.call.record(number, place)}; do all ranks run the same program?"
        )

    def _end(self, text: str) -> None:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
        time.sleep(2 * self._tick)
        self._comm.Abort(CODE)
