"""Sub-communicators, one per set of ranks, made when first needed and freed at the end.

MPI libraries can hold only some two thousand communicators, and making one costs more than using it a hundred
times. All orders of the same ranks share one communicator; the order of a group is kept by its programs.

Making one is a collective, too: the members first meet, with a deadline, so that ranks which do not come to it
are named instead of waited for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

import numpy as np

from spmdsim.errors import DisagreementError, WorldError
from spmdsim.sides import name_ranks, number_of
from spmdsim.worlds.mpi.boards import world_ranks
from spmdsim.worlds.mpi.counted import MEETING, Counted
from spmdsim.worlds.mpi.leaving import Counts, Departures, key, who_left

#: Communicators a world holds at most; MPICH ends at 2,046.
MOST = 1900


class Comms:
    """The communicators of one world."""

    def __init__(self, comm: Counted, deadline: float) -> None:
        self.comm, self.deadline = comm, deadline
        self._all = tuple(range(comm.Get_size()))
        self._made: dict[tuple[int, ...], Counted] = {}
        self.departures: Departures | None = None
        self.closed = False
        if len(self._all) > 1:
            self._made[self._all] = self._create(self._all)
            self.departures = Departures(self._made[self._all])

    def __len__(self) -> int:
        return len(self._made)

    def of(self, ranks: tuple[int, ...]) -> Counted:
        """The communicator of these ranks (sorted, this process among them); collective over them."""
        comm = self._made.get(ranks)
        if comm is None:
            if self.closed and len(self._all) > 1:
                raise WorldError("this world was closed; make another MPIWorld")
            if len(self._made) >= MOST:
                raise WorldError(
                    f"{MOST} different groups of ranks are in use; close() the world to free them"
                )
            if len(ranks) > 1:
                self._meet(ranks)
            comm = self._made[ranks] = self._create(ranks)
        return comm

    def counts(self) -> Counts | None:
        """The groups that were made, for a rank that leaves; None for a world that was closed."""
        return {key("group", ranks): 1 for ranks in self._made} if self._all in self._made else None

    def require(self, ranks: tuple[int, ...], kind: int, number: int, where: Callable[[], str]) -> None:
        """Go on only if none of these ranks has left before it made the call."""
        if self.departures is not None and (gone := self.departures.missing(ranks, kind, number)):
            raise DisagreementError(f"{who_left(gone)} {where()}")

    def _create(self, ranks: tuple[int, ...]) -> Counted:
        group = self.comm.Get_group()
        part = group.Incl(list(ranks))
        comm = self.comm.Create_group(part, tag=len(ranks) % 1024)
        part.Free()
        group.Free()
        return comm

    def _meet(self, ranks: tuple[int, ...]) -> None:
        """All members tell the first one that they are here; when it has heard all, it tells them to go on."""
        talk, me = self._made[self._all], self.comm.Get_rank()
        word, heard = np.array([number_of(repr(ranks))]), np.empty(1, np.int64)
        leader, others = ranks[0], set(ranks[1:])
        if me != leader:
            talk.Send(word, leader, MEETING)
            if not self._until(lambda: talk.Iprobe(leader, MEETING), ranks):
                raise DisagreementError(self._text(ranks, set()))
            talk.Recv(heard, leader, MEETING)
            return
        missing = set(others)

        def hear() -> bool:
            for rank in sorted(missing):
                if talk.Iprobe(rank, MEETING):
                    talk.Recv(heard, rank, MEETING)
                    if heard[0] == word[0]:  # else it comes to another group, and not to this one
                        missing.discard(rank)
            return not missing

        if not self._until(hear, ranks):
            raise DisagreementError(self._text(ranks, missing))
        for rank in sorted(others):
            talk.Send(word, rank, MEETING)

    def _until(self, done: Callable[[], bool], ranks: tuple[int, ...]) -> bool:
        begin, kind = time.monotonic(), key("group", ranks)
        while not done():
            waited = time.monotonic() - begin
            if waited > self.deadline:
                return False
            if waited < 0.005:
                os.sched_yield()
            else:
                self.require(ranks, kind, 0, lambda: f"a collective of {self._names(ranks)}")
                time.sleep(0.0005)
        return True

    def _text(self, ranks: tuple[int, ...], missing: set[int]) -> str:
        who = self._names(sorted(missing)) if missing else "some ranks"
        return f"{who} did not come within {self.deadline:g} s to a collective of {self._names(ranks)}"

    def _names(self, ranks: Sequence[int]) -> str:
        job = world_ranks(self.comm)
        return name_ranks([job[rank] for rank in ranks])

    def free(self) -> None:
        """Free all communicators; collective over the world."""
        for comm in self._made.values():
            comm.Free()
        self._made.clear()
        self.closed = True
