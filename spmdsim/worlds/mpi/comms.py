"""The communicators of a world, created on first use; and the end of a program, where ranks that left are named.

MPI libraries support only some two thousand communicators, and creating one takes longer than using it a hundred
times. All orders of equal ranks share one communicator; programs store the order of a group. Creating one is a
collective, too: the members first meet by messages over the communicator of all ranks, with a deadline.

The agreement of ranks (:mod:`spmdsim.worlds.agreement`) lets ranks meet, too, but it cannot replace these messages. Its
board exists only if calls are compared, and with ``check=False`` a missing rank must be named as well. Its
:class:`~spmdsim.worlds.agreement.comparison.Comparison` runs a collective of the group, for which the group needs the
communicator that is to be created. The messages cannot replace the board either: a rank inside of MPI answers none.

At the end of a program every rank waits for the others. One that waits for long tells the others that it has left, and
which groups it has made. A rank that waits for a group that this rank never made then knows that it will not come. A
rank that only ends before the others disturbs none of them.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Collection, Iterable
from typing import NamedTuple

from mpi4py import MPI

from spmdsim.errors import DisagreementError, WorldError
from spmdsim.shutdown.hooks import guard_mpi_files, read_exit_reason, run_before_quick_exit
from spmdsim.shutdown.phase_watch import waiting_for_ranks
from spmdsim.shutdown.processes import unlink_segments
from spmdsim.shutdown.stop import end_job, end_job_for_others, write_line
from spmdsim.sides import hash_text
from spmdsim.worlds.agreement.interface import CLOSED, CallAgreement
from spmdsim.worlds.agreement.node_memory import world_ranks
from spmdsim.worlds.agreement.process_agreements import PROCESS
from spmdsim.worlds.agreement.process_state import LOST, STOPPED
from spmdsim.worlds.agreement.rank_hosts import name_ranks_on_hosts
from spmdsim.worlds.mpi.counted import ASKED, DONE, LEFT, Counted
from spmdsim.worlds.mpi.meeting import GroupMeeting

#: Communicators a world holds at most; MPICH ends at 2,046.
MOST = 1900
#: Seconds that a rank waits for the members of a group before it asks them whether they have left the program.
PATIENCE = 1.0
#: The largest size of this message in bytes: every library sends it without waiting for the receiver.
LONGEST = 2048
#: Seconds that a rank which leaves after an error waits for the others to leave, too.
HURRIED = 4.0
#: Exit code of a job that waits in vain, equal to that of all mistakes of the user.
MISTAKE = 2
#: Seconds for which a rank that waits for a group only yields its core to others, and then sleeps between two looks.
YIELDING, NAP = 0.005, 0.0005
#: Seconds after which a rank first reports the ranks that it waits for at the end.
WORD = 10.0


class Hurry(NamedTuple):
    """Reason of a rank that leaves after an error.

    Attributes:
        by: the reason, in words.
        code: the exit code of the job.
        silent: True if the rank does not tell ranks that wait for it in a collective, because they would only complain
            of it.
    """

    by: str
    code: int
    silent: bool


class Comms:
    """Communicators of one world.

    The communicator of all ranks is created here; the given one stays the caller's.
    """

    def __init__(self, comm: Counted, deadline: float) -> None:
        self.comm, self.deadline, self._job = comm, deadline, world_ranks(comm)
        self._all = tuple(range(comm.Get_size()))
        self._by_ranks: dict[tuple[int, ...], Counted] = {}
        self._left: dict[int, Collection[int]] = {}  # the groups that a rank made, by rank that has left
        self._asking: dict[int, int] = {}  # the group that a rank waits for, by rank that has asked
        self._questions: list[MPI.Request] = []  # requests keep their messages in memory until they are sent
        self.closed, self.on_several_nodes = "", False
        self._agreement = CallAgreement()
        if len(self._all) > 1:
            # Messages and the barrier at the end have a communicator of their own, in which no collective can hang.
            self._talk, self._by_ranks[self._all] = self._create(self._all), self._create(self._all)

    def __len__(self) -> int:
        return len(self._by_ranks)

    def of(self, ranks: tuple[int, ...]) -> Counted:
        """Return the communicator of some ranks; the first call creates it.

        All these ranks must make the first call together: they wait for each other, because MPI creates a communicator
        only by a call of all its ranks. Later calls send nothing.

        Args:
            ranks: sorted numbers in the world, this process among them.

        Raises:
            WorldError: If the world is closed, or has :data:`MOST` (1,900) communicators.
            DisagreementError: If a member does not come before the deadline, or has left the program.
        """
        comm = self._by_ranks.get(ranks)
        if comm is None:
            if self.closed and len(self._all) > 1:
                raise WorldError(self.closed)
            if len(self._by_ranks) >= MOST:
                raise WorldError(
                    f"{MOST} different groups of ranks are in use; close() the world to free them"
                )
            if len(ranks) > 1:
                self._meet(ranks)
            comm = self._by_ranks[ranks] = self._create(ranks)
        return comm

    def _create(self, ranks: tuple[int, ...]) -> Counted:
        """Create the communicator of some ranks; all of them must call it.

        They must have met before (:meth:`_meet`), because MPI waits without a deadline.

        Args:
            ranks: sorted numbers in the world.
        """
        group = self.comm.Get_group()
        subgroup = group.Incl(list(ranks))
        # The tag tells groups of different sizes apart. It stays below 32767, the largest tag that every MPI library
        # accepts.
        comm = self.comm.Create_group(subgroup, tag=len(ranks) % 1024)
        subgroup.Free()
        group.Free()
        return comm

    def _meet(self, ranks: tuple[int, ...]) -> None:
        """Wait until all members of a group have come to create its communicator (:class:`GroupMeeting`).

        In the first :data:`YIELDING` seconds (5 ms) this rank yields the processor between two looks. After that it
        sleeps :data:`NAP` seconds (0.5 ms). After :data:`PATIENCE` seconds (1, or half the deadline if that is less), or
        if another member asks it, it asks its awaited children and the first member once whether they have left the
        program. From these questions the first member knows who has come, although a rank between them has not.

        Args:
            ranks: the members, sorted numbers in the world; at least two.

        Raises:
            DisagreementError: At the deadline, or if a member left the program without making this group.
        """
        begin, what, number = time.monotonic(), f"a collective of {self._names(ranks)}", _number(ranks)
        meeting, me = GroupMeeting(self._talk, ranks, number), self.comm.Get_rank()
        patience, has_asked = min(PATIENCE, self.deadline / 2), False
        while not meeting.is_over():
            waited = time.monotonic() - begin
            if waited < YIELDING:
                os.sched_yield()
                continue
            self._receive_questions()
            came = {rank for rank, group in self._asking.items() if group == number}
            if not has_asked and (waited > patience or came):
                has_asked = True
                self._ask(number, {*meeting.awaited, ranks[0]} - {me})
            if waited > self.deadline:
                absent = meeting.list_unreported() - came if me == ranks[0] else set()
                who = self._names(absent) if absent else "some ranks"
                raise DisagreementError(f"{who} did not come within {self.deadline:g} s to {what}")
            self._listen()
            if gone := [rank for rank in ranks if rank in self._left and number not in self._left[rank]]:
                raise DisagreementError(f"{self._names(gone)} left the program and will not come to {what}")
            time.sleep(NAP)
        self._asking = {rank: group for rank, group in self._asking.items() if group != number}

    def _ask(self, number: int, ranks: Iterable[int]) -> None:
        """Ask ranks whether they have left the program, and say for which group this rank waits."""
        self._questions += [self._talk.isend(number, rank, ASKED) for rank in sorted(ranks)]

    def _receive_questions(self) -> None:
        """Receive the questions that have arrived.

        A question has the number of the group for which the asking rank waits.
        """
        status = MPI.Status()
        while self._talk.Iprobe(MPI.ANY_SOURCE, ASKED, status):
            self._asking[status.Get_source()] = self._talk.recv(source=status.Get_source(), tag=ASKED)

    def _names(self, ranks: Iterable[int]) -> str:
        """Return ranks of the world in words, by their numbers in the job, with their hosts."""
        return name_ranks_on_hosts(sorted(self._job[rank] for rank in ranks))

    def free(self) -> None:
        """Free all communicators; collective over the world."""
        for comm in self._by_ranks.values():
            comm.Free()
        if len(self._all) > 1:
            self._talk.Free()
        self.refuse(CLOSED)

    def refuse(self, why: str) -> None:
        """Drop all communicators, and raise WorldError with this reason instead of creating one."""
        self._by_ranks.clear()
        self.closed = why

    # -- the end ------------------------------------------------------------------------------------------

    @property
    def open(self) -> bool:
        """True if the communicators exist and were not freed."""
        return self._all in self._by_ranks

    @property
    def of_job(self) -> bool:
        """True if the world has all ranks of the job.

        Its owner may have freed the world's own communicator.
        """
        return len(self._all) == MPI.COMM_WORLD.size

    def at_end(self, agreement: CallAgreement, on_several_nodes: bool) -> None:
        """Make this process wait for the other ranks of this world when its program ends.

        All ranks of the world must call it. The first world of a process registers :func:`_leave`, which waits for the
        ranks of all open worlds at exit and before ``os._exit(0)``:

        - Ranks that still work are waited for without limit, ranks that are stopped until the deadline.
        - The job ends if the calls of ranks differ.
        - A process that ends after an error waits :data:`HURRIED` seconds (4), and then ends the job.
        - A forked child does not wait.

        From then on, ``os.close`` refuses the files of MPI. If the world has all ranks of the job, the names of shared
        memory that are no longer needed are removed.

        Args:
            agreement: compares the calls of this world's ranks, and knows whether a rank is stopped.
            on_several_nodes: True if some ranks of the world are on other nodes.
        """
        is_first_world = not _worlds
        _worlds[:] = [open_world for open_world in _worlds if open_world.open]
        self._agreement, self.on_several_nodes = agreement, on_several_nodes
        _worlds.append(self)
        if self.of_job:
            unlink_segments()
        if is_first_world:
            process = os.getpid()

            def leave(hurry: Hurry | None = None) -> None:
                if os.getpid() == process and not MPI.Is_finalized():
                    with waiting_for_ranks():
                        _leave(hurry)

            atexit.register(leave)
            guard_mpi_files()
            run_before_quick_exit(
                lambda: leave(Hurry("os._exit(0), with others still at work", 1, silent=False))
            )

    def _listen(self) -> None:
        """Receive which groups ranks that have left the program had made, as far as they have reported it."""
        status = MPI.Status()
        while self._talk.Iprobe(MPI.ANY_SOURCE, LEFT, status):
            self._left[status.Get_source()] = self._talk.recv(source=status.Get_source(), tag=LEFT)

    def leave(self, hurry: Hurry | None) -> None:
        """Wait until all ranks of the world have ended their programs.

        The ranks wait in a non-blocking barrier of a communicator that nothing else uses, because another rank may be in
        a collective that it will never finish. Meanwhile:

        - Ranks that still work are waited for without limit. At the deadline the job ends if ranks are stopped or do not
          answer.
        - A rank that waits for a group asks whether this one has left, and gets the numbers of the groups that this one
          has made. If its own group is not among them, it raises an error.
        - This rank answers nothing if ``hurry`` is silent, or if the numbers take more than :data:`LONGEST` bytes (2,048),
          as those of some 200 groups do. The rank that asks then waits until its deadline.
        - After :data:`PATIENCE` seconds (1) this rank reports once to rank 0 that it has come, so that rank 0 knows for
          which ranks it waits. Other ranks name rank 0.
        - After :data:`WORD` seconds (10), 20, 40 and so on, one of the ranks prints for which ranks it waits, and sends
          its numbers to all others, so that they do not print, too.
        - Rank r measures these times 0.1 r seconds later than rank 0, at most 10 s later, so that one rank is the first.

        Args:
            hurry: the reason if this rank ends early, such as after an error: it ends the job if the others have not come
                after :data:`HURRIED` seconds (4; up to 10 more on higher ranks). None for a rank that ends well.
        """
        comm, begin, next_word = self._talk, time.monotonic(), WORD
        groups = {_number(ranks) for ranks in self._by_ranks}
        answers = not (hurry is not None and hurry.silent) and len(MPI.pickle.dumps(groups)) <= LONGEST
        awaited = {0} if comm.rank else set(range(1, comm.size))
        all_came, sent, has_reported = comm.Ibarrier(), [], comm.rank == 0
        while not all_came.Test():
            if answers:
                sent += self._answer_questions(groups)
            waited = time.monotonic() - begin
            waited_in_turn = waited - min(0.1 * comm.rank, WORD)  # One rank reports first, for all.
            if not has_reported and waited > PATIENCE:
                has_reported = True
                sent.append(comm.isend(None, 0, DONE))
            awaited -= self._receive_ends()
            if hurry is not None and waited_in_turn > HURRIED:
                who = f"{self._names([comm.rank])} of {MPI.COMM_WORLD.size}"
                end_job(f"{who} stopped, the job ends:\n{hurry.by}", hurry.code)
            self._require_running(awaited, waited_in_turn)
            if awaited and waited_in_turn > next_word:
                next_word *= 2
                if self._report_waiting(awaited, waited) and answers:
                    sent += [comm.isend(groups, rank, LEFT) for rank in self._all if rank != comm.rank]
            time.sleep(NAP)
        self._listen()
        self._receive_ends()
        MPI.Request.Waitall(sent)

    def _receive_ends(self) -> set[int]:
        """Receive the reports of ranks that have ended their programs; return these ranks."""
        ended, status = set(), MPI.Status()
        while self._talk.Iprobe(MPI.ANY_SOURCE, DONE, status):
            self._talk.recv(source=status.Get_source(), tag=DONE)
            ended.add(status.Get_source())
        return ended

    def _answer_questions(self, groups: Collection[int]) -> list[MPI.Request]:
        """Start to answer each rank that has asked; return the requests of these sends.

        Args:
            groups: the answer: the numbers (:func:`_number`) of the groups that this rank has made.
        """
        self._receive_questions()
        answers = [self._talk.isend(groups, rank, LEFT) for rank in self._asking]
        self._asking.clear()
        return answers

    def meet_at_end(self) -> None:
        """Wait until all ranks of the world have called it. Only processes on other nodes make it necessary.

        All ranks have come to the end of the world or of their programs before. They are waited for without limit, but
        the job ends at the deadline if some are stopped or do not answer.
        """
        request, begin = self._talk.Ibarrier(), time.monotonic()
        while not request.Test():
            self._require_running(range(self._talk.size), time.monotonic() - begin)
            time.sleep(NAP)

    def _require_running(self, awaited: Iterable[int], waited: float) -> None:
        """End the job if awaited ranks are stopped or do not answer; do nothing before the deadline.

        A rank is stopped by a signal or a debugger. It does not answer if its host cannot be reached, or if its node
        was silent for longer than the deadline: a node that is only slow answers in between.

        Args:
            awaited: the ranks, by their numbers in the world.
            waited: the seconds for which this rank has waited.
        """
        if waited < self.deadline:
            return
        status = {self._job[rank]: self._agreement.describe(rank) for rank in awaited}
        stopped = sorted(rank for rank, its in status.items() if its.state == STOPPED)
        silent = sorted(
            r for r, its in status.items() if its.state == LOST or its.silent_seconds > self.deadline
        )
        for ranks, how in ((stopped, "stopped"), (silent, "not answering")):
            if ranks:
                who = f"{name_ranks_on_hosts(ranks)} {'is' if len(ranks) == 1 else 'are'} {how}"
                what = f"did not come to the end of the program within {self.deadline:g} s"
                end_job(f"{who} and {what}, the job ends", MISTAKE)

    def _report_waiting(self, awaited: Iterable[int], waited: float) -> bool:
        """Print which ranks this one waits for, unless a lower rank has done it; return True if it prints.

        An example is "rank 0 has ended the program, and waits for rank 2 since 5 s".

        Args:
            awaited: the ranks, by their numbers in the world.
            waited: the seconds for which this rank has waited.
        """
        self._listen()
        me = self._talk.rank
        if me == min([me, *self._left]):
            who = f"{self._names([me])} has ended the program"
            write_line(f"{who}, and waits for {self._names(awaited)} since {waited:.0f} s")
            return True
        return False


_worlds: list[Comms] = []


def _number(ranks: tuple[int, ...]) -> int:
    """Return the number of a group."""
    return hash_text(repr(ranks))


def _leave(hurry: Hurry | None) -> None:
    """Wait, at the end of the program, for the other ranks of all open worlds.

    1. Compare the calls of this rank with those of the others; if they differ, end the job.
    2. Wait for the ranks of an open world that has all ranks of the job; without one, for those of each open world.
    3. Compare the calls again, now that all these ranks have ended their programs.
    4. For each open world on several nodes: wait until all its ranks have come to this point. This is omitted if an
       error ended the program.
    5. Only if there are open worlds, and none has all ranks of the job: rank 0 ends the job if other ranks reported a
       failure.
    6. Stop the threads that watch the ranks.

    Args:
        hurry: the reason, if this rank ends early after an error; None if its program ends normally. If an exception
            ended the program, the reason is made from the exception instead.
    """
    code, why = read_exit_reason()
    if code:
        hurry = Hurry(why, code, silent=True)
    open_worlds = [open_world for open_world in _worlds if open_world.open]
    PROCESS.leave_program(code, is_last=False)
    # A rank that waits for all ranks need not wait for some. Otherwise worlds follow in the order of their creation.
    for open_world in [open_world for open_world in open_worlds if open_world.of_job][:1] or open_worlds:
        open_world.leave(hurry)
    PROCESS.leave_program(code, is_last=bool(open_worlds))
    for open_world in open_worlds:
        if open_world.on_several_nodes and not code:
            open_world.meet_at_end()  # A process that ends answers no requests.
    has_waited_for_all = any(open_world.of_job for open_world in open_worlds)
    if open_worlds and not has_waited_for_all:
        end_job_for_others(Counted.of(MPI.COMM_WORLD, open_worlds[0].comm.tally))
    PROCESS.stop()
