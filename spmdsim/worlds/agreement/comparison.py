"""Comparison of a number between the ranks of a communicator; ranks that do not come are named in an error."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from spmdsim.errors import DisagreementError
from spmdsim.worlds.agreement.arrival_gossip import GAVE_UP, ROUNDS, ArrivalGossip, abandoned
from spmdsim.worlds.agreement.node_memory import world_ranks
from spmdsim.worlds.agreement.rank_hosts import name_ranks_on_hosts

#: Seconds of waiting without sleeping.
SPIN = 0.005
#: Seconds between two looks for messages.
NAP = 0.002
#: Seconds for which a rank that gave up gossips, and then seconds for which it waits for last messages.
GOSSIP, GRACE = 0.75, 0.25


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
        "others gave up before this rank came". Blocks up to :data:`GOSSIP` + :data:`GRACE` (1) seconds.
        """
        absent = [world_ranks(self.comm)[rank] for rank in self._absent()]
        if not absent:
            return "others gave up before this rank came"
        return f"{name_ranks_on_hosts(sorted(absent))} did not come within {self.deadline:g} s"

    def _absent(self) -> list[int]:
        """Return the ranks that have not come, as sorted numbers in the communicator.

        The ranks that give up gossip (:class:`ArrivalGossip`) for :data:`GOSSIP` (0.75) seconds, or until no rank is
        missed. Each rank that is still missed gets a message of its own, and has :data:`GRACE` (0.25) seconds to send
        one. For example, ranks 0 and 1 of three give up, and rank 2 never came: both return [2].
        """
        gossip, begin = ArrivalGossip(self.comm), time.monotonic()
        # The first round has no pauses, and wakes ranks that still wait.
        turns = gossip.partners * (1 + ROUNDS)
        pause = GOSSIP / max(1, ROUNDS * len(gossip.partners))
        for turn, partner in enumerate(turns, 1 - len(gossip.partners)):
            self._listen(gossip, begin + turn * pause)
            gossip.send_news(partner)
        self._listen(gossip, begin + GOSSIP)
        while not gossip.is_complete and time.monotonic() < begin + GOSSIP + GRACE:
            gossip.send_last_news()
            self._listen(gossip, time.monotonic() + NAP)
        return gossip.absent

    def _listen(self, gossip: ArrivalGossip, end: float) -> None:
        """Receive messages until the time ``end`` by ``time.monotonic()``, or until no rank is missed."""
        gossip.receive()
        while not gossip.is_complete and time.monotonic() < end:
            time.sleep(NAP)
            gossip.receive()
