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

from spmdsim.errors import WorldError
from spmdsim.worlds.mpi.counted import GAVE_UP
from spmdsim.worlds.mpi.fingerprint import number_of

#: What a rank says of itself, by name.
Facts = Mapping[str, str]

#: Seconds of waiting in which nothing else is looked after.
PATIENCE = 0.005
#: Seconds that a rank which gave up waits for the others that give up.
GRACE = 1.0

_forsaken: list[object] = []
"""Requests that will never be complete, with their memory: MPI may still write there."""


class Comparison:
    """All ranks of a communicator compare their facts. Collective.

    Args:
        comm: the communicator; nobody else uses its non-blocking collectives meanwhile.
        facts: what this rank says.
        deadline: seconds to wait for the others.
        look: called now and then while this waits; may raise.
    """

    def __init__(
        self, comm: MPI.Comm, facts: Facts, deadline: float, look: Callable[[], None] = lambda: None
    ) -> None:
        self.comm, self.facts, self.deadline, self._look = comm, facts, deadline, look
        number = number_of(repr(sorted(facts.items())))
        self._given, self._common = np.array([number, -number]), np.empty(2, np.int64)
        self._request = comm.Iallreduce(self._given, self._common, MPI.MIN)
        self._since = time.monotonic()

    def arrived(self) -> bool:
        """Whether all ranks have come. One that waits for others calls this again and again.

        Raises:
            WorldError: some did not before the deadline.
        """
        if self._request.Test():
            return True
        waited = time.monotonic() - self._since
        if waited < PATIENCE:
            os.sched_yield()
        elif waited > self.deadline or self.comm.Iprobe(MPI.ANY_SOURCE, GAVE_UP):
            _forsaken.append((self._request, self._given, self._common))
            raise WorldError(f"{_names(self._absent())} did not come within {self.deadline:g} s")
        else:
            self._look()
            time.sleep(0.0005)
        return False

    def others(self) -> list[Facts] | None:
        """Wait for all: None if they say the same, else what each of them says."""
        while not self.arrived():
            pass
        return None if self._common[0] == -self._common[1] else self.comm.allgather(dict(self.facts))

    def _absent(self) -> list[int]:
        """Tell the others that this rank gave up; who does not say so too within a moment is missing."""
        comm, me = self.comm, self.comm.Get_rank()
        everyone = range(comm.Get_size())
        word, absent = np.array([me]), {rank for rank in everyone if rank != me}
        _forsaken.extend([word, *(comm.Isend(word, rank, GAVE_UP) for rank in absent)])
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
    names = dict.fromkeys(name for some in facts for name in some)
    return [name for name in names if len({some.get(name) for some in facts}) > 1]


def sides(said: Sequence[str | None]) -> list[tuple[str, str | None]]:
    """Who says what, the larger group first: ``[("ranks 0, 2", "SUM"), ("rank 1", "MAX")]``.

    >>> sides(["SUM", "MAX", "SUM"])
    [('ranks 0, 2', 'SUM'), ('rank 1', 'MAX')]
    """
    groups: dict[str | None, list[int]] = {}
    for rank, text in enumerate(said):
        groups.setdefault(text, []).append(rank)
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    return [(_names(ranks), text) for text, ranks in ordered]


def _names(ranks: Sequence[int]) -> str:
    if not ranks:
        return "no rank"
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
