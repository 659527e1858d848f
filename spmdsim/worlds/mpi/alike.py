"""What must be alike on all ranks of a communicator: one number per rank is compared, words only where it differs.

A comparison is posted and waited for later, so that it may run beside what it is about. Ranks that do not come are named
after a deadline, those that left the program before that.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from mpi4py import MPI

from spmdsim.errors import DisagreementError
from spmdsim.sides import name_ranks
from spmdsim.worlds.mpi.boards import world_ranks
from spmdsim.worlds.mpi.counted import GAVE_UP
from spmdsim.worlds.mpi.messages import abandoned

#: What a rank says of itself, by name.
Facts = Mapping[str, str]

#: Seconds of waiting in which nothing else is looked after.
PATIENCE = 0.005
#: Seconds that a rank which gave up waits for the others that give up.
GRACE = 1.0


class Comparison:
    """All ranks of a communicator compare a number, a positive one of 61 bits. Collective.

    Args:
        comm: the communicator; nobody else uses its non-blocking collectives meanwhile.
        number: what must be equal.
        deadline: seconds to wait for the others.
        look: called now and then while this waits; says why that is in vain, if it is.
    """

    def __init__(
        self, comm: MPI.Comm, number: int, deadline: float, look: Callable[[], str | None] = lambda: None
    ) -> None:
        self.comm, self.deadline, self._look = comm, deadline, look
        self._given, self._common = np.array([number, -number]), np.empty(2, np.int64)
        self._request = comm.Iallreduce(self._given, self._common, MPI.MIN)
        self._since = time.monotonic()

    def arrived(self) -> bool:
        """Whether all ranks have come. One that waits for others asks again and again.

        Raises:
            WorldError: some did not come before the deadline.
        """
        if self._request.Test():
            return True
        waited = time.monotonic() - self._since
        if waited < PATIENCE:
            os.sched_yield()
        elif waited > self.deadline or self.comm.Iprobe(MPI.ANY_SOURCE, GAVE_UP):
            abandoned.append((self._request, self._given, self._common))
            absent = name_ranks(sorted(world_ranks(self.comm)[rank] for rank in self._absent()))
            raise DisagreementError(f"{absent} did not come within {self.deadline:g} s")
        elif (why := self._look()) is not None:
            abandoned.append((self._request, self._given, self._common))
            raise DisagreementError(why)
        else:
            time.sleep(0.0005)
        return False

    def equal(self) -> bool:
        """Wait for all ranks: whether they have the same number."""
        while not self.arrived():
            pass
        return bool(self._common[0] == -self._common[1])

    def _absent(self) -> list[int]:
        """Tell the others that this rank gave up; who does not say so too within a moment is missing."""
        comm, me = self.comm, self.comm.Get_rank()
        everyone = range(comm.Get_size())
        word, absent = np.array([me]), {rank for rank in everyone if rank != me}
        abandoned.extend([word, *(comm.Isend(word, rank, GAVE_UP) for rank in absent)])
        end, status = time.monotonic() + GRACE, MPI.Status()
        while absent and time.monotonic() < end:
            if comm.Iprobe(MPI.ANY_SOURCE, GAVE_UP, status):
                comm.Recv(np.empty(1, word.dtype), status.Get_source(), GAVE_UP)
                absent.discard(status.Get_source())
            else:
                time.sleep(0.002)
        return sorted(absent)


def differing(facts: Sequence[Facts]) -> list[str]:
    """The names of what is not alike, in the order in which the first rank says it.

    >>> differing([{"numpy": "2.0", "check": "1"}, {"check": "1", "numpy": "1.26"}])
    ['numpy']
    """
    known = dict.fromkeys(name for some in facts for name in some)
    return [name for name in known if len({some.get(name) for some in facts}) > 1]
