"""A rank that leaves the program while others still wait for it is named, instead of waited for.

The end of a program is a collective, too: every rank waits for the others there. One that waits for long tells the
others that it has left, and how many calls of which groups it made. Who waits in a call that it never made then
knows that it will not come. A rank that merely is done before the others disturbs nobody.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable, Iterable

from mpi4py import MPI

from spmdsim.worlds.mpi.counted import DONE, LEFT, Counted
from spmdsim.worlds.mpi.fingerprint import number_of

#: Seconds that a rank waits for the others at the end before it tells them that it has left.
PATIENCE = 1.0
#: Bytes of such a message at most: what every library sends without waiting for the receiver.
LONGEST = 2048

Counts = dict[int, int]


def key(kind: str, ranks: Iterable[int] = ()) -> int:
    """The number that stands for the calls of one kind and one group."""
    return number_of(f"{kind} {tuple(ranks)}")


class Departures:
    """Which ranks of a communicator have left, as far as they said so.

    Args:
        comm: all ranks of the world; for messages that nobody else reads.
    """

    def __init__(self, comm: Counted) -> None:
        self.comm = comm
        self._left: dict[int, Counts] = {}

    def missing(self, ranks: Iterable[int], kind: int, number: int) -> list[int]:
        """The ranks that have left without making call ``number`` (from 0 on) of this kind."""
        self.listen()
        return [r for r in ranks if r in self._left and self._left[r].get(kind, 0) <= number]

    def listen(self) -> None:
        """Take what others that left have said."""
        status = MPI.Status()
        while self.comm.Iprobe(MPI.ANY_SOURCE, LEFT, status):
            self._left[status.Get_source()] = self.comm.recv(source=status.Get_source(), tag=LEFT)

    def leave(self, counts: Counts) -> None:
        """Wait until all ranks leave; tell the others after a while."""
        comm, begin, told = self.comm, time.monotonic(), len(MPI.pickle.dumps(counts)) > LONGEST
        others = [rank for rank in range(comm.size) if rank != comm.rank]
        sent = [] if comm.rank == 0 else [comm.isend(None, 0, DONE)]
        # No barrier of MPI's: another rank may have begun a collective that it will never finish.
        awaited = set(others) if comm.rank == 0 else {0}
        while awaited:
            for rank in [rank for rank in awaited if comm.Iprobe(rank, DONE)]:
                comm.recv(source=rank, tag=DONE)
                awaited.discard(rank)
            if not told and time.monotonic() - begin > PATIENCE:
                sent += [comm.isend(counts, rank, LEFT) for rank in others]
                told = True
            time.sleep(0.0005)
        if comm.rank == 0:
            sent += [comm.isend(None, rank, DONE) for rank in others]
        self.listen()
        MPI.Request.Waitall(sent)


def at_end(departures: Departures, counts: Callable[[], Counts | None]) -> None:
    """Have this process leave properly at its end.

    Args:
        departures: of the world.
        counts: the calls made, or None if the world was closed.
    """
    process = os.getpid()

    def leave() -> None:
        if os.getpid() != process or MPI.Is_finalized():
            return
        if (made := counts()) is not None:
            departures.leave(made)

    atexit.register(leave)


def who_left(ranks: list[int]) -> str:
    """The beginning of the error."""
    which = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
    return f"{which} left the program and will not come to"
