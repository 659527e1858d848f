"""A rank that leaves the program while others still wait for it is named, instead of waited for.

The end of a program is a collective, too: every rank waits for the others there. One that waits for long tells the
others that it has left, and how many calls of which groups it made. Who waits in a call that it never made then
knows that it will not come. A rank that merely is done before the others disturbs nobody.
"""

from __future__ import annotations

import atexit
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from mpi4py import MPI

from spmdsim.ending.hooks import hook_quick_exit, left_with
from spmdsim.ending.starting import unlink_segments
from spmdsim.ending.stop import end_job, speak_for_others, write
from spmdsim.sides import name_ranks, number_of
from spmdsim.worlds.mpi.board import RUNS, SILENT, STOPPED, Processes
from spmdsim.worlds.mpi.boards import world_ranks
from spmdsim.worlds.mpi.counted import DONE, LEFT, Counted
from spmdsim.worlds.mpi.waiting import Watch

if TYPE_CHECKING:
    from spmdsim.worlds.mpi.checker import Checker

#: Seconds that a rank waits for the others at the end before it tells them that it has left.
PATIENCE = 1.0
#: Bytes of such a message at most: what every library sends without waiting for the receiver.
LONGEST = 2048
#: Seconds that a rank which leaves in a hurry waits for the others to leave as well.
HURRIED = 4.0
#: Exit code of a job that waits in vain: that of every mistake of the user's.
MISTAKE = 2
#: Seconds after which a rank says for the first time whom it waits for at the end.
WORD = 10.0

Counts = dict[int, int]


def key(kind: str, ranks: Iterable[int] = ()) -> int:
    """The number that stands for the calls of one kind and one group."""
    return number_of(f"{kind} {tuple(ranks)}")


class Hurry(NamedTuple):
    """How a rank leaves that does not end well."""

    by: str
    code: int
    silent: bool


class Departures:
    """Which ranks of a communicator have left, as far as they said so."""

    def __init__(self, comm: Counted) -> None:
        self.comm, self._ranks = comm, world_ranks(comm)
        self._left: dict[int, Counts] = {}

    @property
    def of_all(self) -> bool:
        """Whether all ranks of the job are in the world."""
        return self.comm.size == MPI.COMM_WORLD.size

    def _names(self, ranks: Iterable[int]) -> str:
        return name_ranks(sorted(self._ranks[rank] for rank in ranks))

    def missing(self, ranks: Iterable[int], kind: int, number: int) -> list[int]:
        """The ranks that have left without making call ``number`` (from 0 on) of this kind."""
        self.listen()
        return [r for r in ranks if r in self._left and self._left[r].get(kind, 0) <= number]

    def listen(self) -> None:
        """Take what others that left have said."""
        status = MPI.Status()
        while self.comm.Iprobe(MPI.ANY_SOURCE, LEFT, status):
            self._left[status.Get_source()] = self.comm.recv(source=status.Get_source(), tag=LEFT)

    def leave(
        self,
        counts: Counts,
        hurry: Hurry | None = None,
        state: Callable[[int], int] = lambda rank: RUNS,
        deadline: float = math.inf,
    ) -> None:
        """Wait until all ranks leave; tell the others after a while.

        Ranks that still work are waited for as long as they like, those that are stopped until the deadline.
        """
        comm, begin, next_word = self.comm, time.monotonic(), WORD
        told = (hurry is not None and hurry.silent) or len(MPI.pickle.dumps(counts)) > LONGEST
        others = [rank for rank in range(comm.size) if rank != comm.rank]
        sent = [] if comm.rank == 0 else [comm.isend(None, 0, DONE)]
        # No barrier of MPI's: another rank may have begun a collective that it will never finish.
        awaited = set(others) if comm.rank == 0 else {0}
        while awaited:
            for rank in [rank for rank in awaited if comm.Iprobe(rank, DONE)]:
                comm.recv(source=rank, tag=DONE)
                awaited.discard(rank)
            waited = time.monotonic() - begin
            if not told and waited > PATIENCE:
                sent += [comm.isend(counts, rank, LEFT) for rank in others]
                told = True
            turn = waited - 0.1 * comm.rank  # so that one speaks for all
            if hurry is not None and turn > HURRIED:
                end_job(
                    f"{self._names([comm.rank])} of {MPI.COMM_WORLD.size} stopped, the job ends:\n{hurry.by}",
                    hurry.code,
                )
            if turn > deadline:
                _require_running({self._ranks[rank]: state(rank) for rank in awaited}, deadline)
            if awaited and waited > next_word:
                next_word *= 2
                self._sign(sorted(awaited), waited)
            time.sleep(0.0005)
        if comm.rank == 0:
            sent += [comm.isend(None, rank, DONE) for rank in others]
        self.listen()
        MPI.Request.Waitall(sent)

    def meet(self, deadline: float) -> None:
        """Wait until all ranks are here, as they have said that they will be."""
        request, end = self.comm.Ibarrier(), time.monotonic() + deadline
        while not request.Test() and time.monotonic() < end:
            time.sleep(0.0005)

    def _sign(self, awaited: list[int], waited: float) -> None:
        """The first rank that has left says whom it waits for."""
        self.listen()
        if self.comm.rank == min([self.comm.rank, *self._left]):
            write(
                f"{self._names([self.comm.rank])} has ended the program, and waits for {self._names(awaited)} since {waited:.0f} s"
            )


def _require_running(states: Mapping[int, int], deadline: float) -> None:
    """End the job if some ranks are stopped, by a signal or by a debugger, or nobody answers for them."""
    for state, how in ((STOPPED, "stopped"), (SILENT, "not answering")):
        ranks = sorted(rank for rank, its_state in states.items() if its_state == state)
        if ranks:
            be = "is" if len(ranks) == 1 else "are"
            end_job(
                f"{name_ranks(ranks)} {be} {how} and did not come to the end of the program within {deadline:g} s, "
                "the job ends",
                MISTAKE,
            )


class _Open(NamedTuple):
    """A world that this process waits in at its end."""

    departures: Departures
    counts: Callable[[], Counts | None]
    state: Callable[[int], int]
    deadline: float
    far: bool


_worlds: list[_Open] = []


def at_end(
    departures: Departures,
    counts: Callable[[], Counts | None],
    comm: MPI.Comm,
    deadline: float,
    checker: Checker | None = None,
) -> None:
    """Have this process wait, at its end, for the ranks of the worlds that are open then, and find out who never comes."""
    first = not _worlds
    _worlds[:] = [one for one in _worlds if one.counts() is not None]
    state = Processes(comm).state if checker is None else checker.process
    far = checker is not None and bool(checker.board.far)
    _worlds.append(_Open(departures, counts, state, deadline, far))
    if departures.of_all:
        unlink_segments()
    if first:
        process = os.getpid()

        def leave(hurry: Hurry | None = None) -> None:
            if os.getpid() == process and not MPI.Is_finalized():
                _leave(hurry)

        atexit.register(leave)
        hook_quick_exit(lambda: leave(Hurry("os._exit(0), with others still at work", 1, silent=False)))


def _leave(hurry: Hurry | None) -> None:
    code, why = left_with()
    if code:
        hurry = Hurry(why, code, silent=True)
    still = [one for one in _worlds if one.counts() is not None]
    Watch.leave_all(code, last=False)
    # Who waits for all ranks need not wait for some. Else the worlds come in the order in which all have made them.
    for one in [one for one in still if one.departures.of_all][:1] or still:
        if (counts := one.counts()) is not None:
            one.departures.leave(counts, hurry, one.state, one.deadline)
    Watch.leave_all(code, last=bool(still))
    for one in still:
        if one.far and not code:
            one.departures.meet(one.deadline)  # whoever ends answers no more
    if still and not any(one.departures.of_all for one in still):  # else all have been waited for
        speak_for_others(Counted.of(MPI.COMM_WORLD, still[0].departures.comm.tally))
    Watch.stop_all()


def who_left(ranks: list[int]) -> str:
    """The beginning of the error."""
    return f"{name_ranks(ranks)} left the program and will not come to"
