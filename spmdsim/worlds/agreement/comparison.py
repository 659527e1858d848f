"""Comparison of a number between the ranks of a communicator; ranks that do not come are named in an error."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from spmdsim.errors import DisagreementError
from spmdsim.worlds.agreement.node_memory import world_ranks
from spmdsim.worlds.agreement.rank_hosts import name_ranks_on_hosts

#: The tag of messages that say that a rank gave up. Below every library's limit on tags.
GAVE_UP = 77_013
#: Seconds of waiting without sleeping, and seconds that a rank which gave up waits for others that give up.
SPIN, GRACE = 0.005, 1.0
#: Requests that will never complete, with their memory, where MPI may still write.
abandoned: list[object] = []


class Comparison:
    """Comparison of one number on all ranks of a communicator: positive, of 61 bits. Collective.

    It is posted first and waited for later, so that it may run beside the call that it is about. Nothing else may
    use the communicator's non-blocking collectives meanwhile.

    Args:
        comm: the communicator.
        number: this rank's number.
        deadline: seconds after which ranks that have not come are named in an error.
        look: function without arguments that a waiting rank calls repeatedly. It returns a reason why other ranks will
            not come, or None; the reason becomes the text of the error.
    """

    def __init__(
        self, comm: MPI.Comm, number: int, deadline: float, look: Callable[[], str | None] = lambda: None
    ) -> None:
        self.comm, self.deadline, self._look = comm, deadline, look
        self._sent, self._common = np.array([number, -number]), np.empty(2, np.int64)
        self._request = comm.Iallreduce(self._sent, self._common, MPI.MIN)
        self._since = time.monotonic()

    def arrived(self) -> bool:
        """Return True if all ranks have posted the comparison; a waiting rank calls it repeatedly.

        If some have not:

        - In the first :data:`SPIN` (0.005) seconds: yield the processor, and return False.
        - Later: raise an error if waiting longer cannot help, else sleep 0.5 ms and return False.

        Raises:
            DisagreementError: If the deadline is over on this rank, another rank gave up, or ``look`` returns a reason.
                After the error the request stays open for ever, because MPI may still write to its memory.
        """
        if self._request.Test():
            return True
        waited = time.monotonic() - self._since
        if waited < SPIN:
            os.sched_yield()
            return False
        if waited > self.deadline or self.comm.Iprobe(MPI.ANY_SOURCE, GAVE_UP):
            why: str | None = self._describe_absence()
        else:
            why = self._look()
        if why is not None:
            # MPI may still write to the buffers of the request, so they are not freed.
            abandoned.append((self._request, self._sent, self._common))
            raise DisagreementError(why)
        time.sleep(0.0005)
        return False

    def equal(self) -> bool:
        """Wait for all ranks; return True if they have equal numbers.

        Raises:
            DisagreementError: If ranks do not come; see :meth:`arrived`.
        """
        while not self.arrived():
            pass
        return bool(self._common[0] == -self._common[1])

    def _describe_absence(self) -> str:
        """Return a text about the ranks that did not come; the caller appends "to" and the call.

        For example, "rank 2 on node1 did not come within 5 s". All ranks that give up return an equal text, because
        their deadlines are equal. If this rank comes when all others have given up, it misses no rank; then the text is
        "others gave up before this rank came". Blocks up to :data:`GRACE` (1) seconds.
        """
        absent = [world_ranks(self.comm)[rank] for rank in self._absent()]
        if not absent:
            return "others gave up before this rank came"
        return f"{name_ranks_on_hosts(sorted(absent))} did not come within {self.deadline:g} s"

    def _absent(self) -> list[int]:
        """Return the ranks that have not come, as sorted numbers in the communicator.

        Each rank that gives up sends a message to all other ranks and does not wait for its delivery. So a rank has
        come if its message arrives here within :data:`GRACE` (1) seconds; all others are absent. For example, ranks 0
        and 1 of three give up, and rank 2 never came: both return [2].
        """
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
