"""A rank has a supervisor: a process that sees how the rank ends, tells the starter, and leaves no orphan.

No launcher says of every death which rank it was and by which signal or code, and some let ranks run on when the starter
is killed. A supervisor is the process that the launcher started, with the rank as its child: forked before anything is
loaded, it shares its memory and sleeps until something happens.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from spmdsim.launcher import LAUNCHER, STARTER, Launched, give_job_facts, read_job_facts
from spmdsim.settings import RECORD
from spmdsim.shutdown import exit_notes
from spmdsim.shutdown.leftovers import remove_segments
from spmdsim.shutdown.phase_watch import CODE, describe_early_exit, find_waiting_ranks
from spmdsim.shutdown.processes import SIGNAL_WITH_PARENT, read_status, set_process_option
from spmdsim.shutdown.stop import exit_now

#: Signals that launchers pass on to their ranks.
FORWARDED = ("SIGHUP", "SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGCONT")
#: How long a rank may take to end once it was asked to.
GRACE_SECONDS = 3
#: How long the starter may take to end the job after a rank died.
ENDED_SECONDS = 5.0
#: Between two looks for ranks that wait where MPI starts.
LOOK_SECONDS = 0.25


def start_supervisor(job: Launched | None) -> None:
    """Let this process become the supervisor of the rank it was, which goes on in a child; only the child returns.

    Does nothing without a starter on this machine, or on a system that cannot watch processes.
    """
    if job is not None and os.environ.get(RECORD.name) and hasattr(signal, "SIGUSR1"):
        # The signal asks for the last calls. It must not kill a rank that logs none, or none yet.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    folder = exit_notes.job_folder()
    if job is None or folder is None or LAUNCHER in read_job_facts() or not hasattr(os, "pidfd_open"):
        return
    give_job_facts(os.environ, launcher=str(os.getppid()))
    sys.stdout.flush()
    sys.stderr.flush()
    forwarded = [getattr(signal, name) for name in FORWARDED]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, forwarded)
    supervisor = os.getpid()
    child = os.fork()
    if child == 0:
        set_process_option(SIGNAL_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != supervisor:  # gone already
            os._exit(1)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    exit_notes.note_start(folder, job.rank)
    code = 1
    try:
        code = _Nurse(child, job, folder).watch(forwarded, before)
    except Exception as error:
        sys.stderr.write(f"the supervisor of rank {job.rank} failed, the rank ends: {error!r}\n")
        sys.stderr.flush()
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        exit_now(code)


class _Nurse:
    def __init__(self, child: int, job: Launched, folder: Path) -> None:
        self.child, self.job, self.folder = child, job, folder
        self.asked = False

    def watch(self, forwarded: list[int], mask: set[signal.Signals | int]) -> int:
        """Wait for the rank's end; its exit code."""
        rank = os.pidfd_open(self.child)
        starter = _open_ancestor(int(read_job_facts().get(STARTER, "0")))
        for number in forwarded:
            signal.signal(number, self._forward)
        signal.signal(signal.SIGALRM, lambda *_: self._end(signal.SIGKILL))
        set_process_option(SIGNAL_WITH_PARENT, signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        poll = select.poll()
        poll.register(rank, select.POLLIN)
        if starter is not None:
            poll.register(starter, select.POLLIN)
        alone = False
        while rank not in (ready := [descriptor for descriptor, _ in poll.poll()]):
            alone = starter in ready
            self.asked = True
            poll.unregister(ready[0])
            self._end(signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(self.child, 0)[1])
        if alone:
            self._clean()
        elif not self.asked:
            self._tell(code)
        return code_of(code)

    def _forward(self, number: int, _: object) -> None:
        if number == signal.SIGTERM:
            self.asked = True
            signal.alarm(GRACE_SECONDS)  # a rank that is stopped, or does not listen
        self._end(number)

    def _end(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.child, number)

    def _tell(self, code: int) -> None:
        """Leave a note of a death, unless the rank itself has said why it ends; the starter ends the job."""
        rank = self.job.rank
        if (code == 0 and (self.folder / f"rank_{rank}").exists()) or exit_notes.has_left(
            self.folder, rank, code
        ):
            if code == 0 and exit_notes.has_left_before_mpi(self.folder, rank):
                self._stay()
            return
        exit_notes.note_failure(code_of(code), cause_of(code))
        end = time.monotonic() + ENDED_SECONDS
        while (
            code == 0 and len(exit_notes.list_ended_ranks(self.folder)) < self.job.size
        ):  # do all go like this?
            time.sleep(0.05)
            code = int(time.monotonic() > end)
        if code:
            exit_notes.note_end()
            time.sleep(ENDED_SECONDS)

    def _stay(self) -> None:
        """Hide that the rank left before it started MPI from the launcher, until the others have left or wait for it there.

        Of some launchers nobody learns then which rank it was, and others let the ranks wait for ever.
        """
        while not self.asked and len(exit_notes.list_ended_ranks(self.folder)) < self.job.size:
            if waiting := find_waiting_ranks(self.job):
                exit_notes.note_failure(CODE, describe_early_exit(waiting))
                exit_notes.note_end()
                time.sleep(ENDED_SECONDS)
                return
            time.sleep(LOOK_SECONDS)

    def _clean(self) -> None:
        """Leave nothing behind where the starter cannot: the last supervisor finds nothing in use any more."""
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        with suppress(OSError):
            since = exit_notes.read_begin(self.folder)
            shutil.rmtree(self.folder, ignore_errors=True)
            remove_segments(since)


def code_of(returncode: int) -> int:
    """A process's exit code as a shell has it: 128 + the signal if a signal ended it."""
    return 128 - returncode if returncode < 0 else returncode


def cause_of(code: int) -> str:
    """What ended a rank, in words, by its exit code: minus the number of the signal that killed it.

    >>> cause_of(-11), cause_of(5)
    ('was killed by signal 11 (SIGSEGV)', 'ended with exit code 5 without a word')
    """
    if code > 0:
        return f"ended with exit code {code} without a word"
    if code == 0:
        return "left in the middle of the program, by os._exit(0) or the like"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "of no name"
    why = ", as the system does when memory runs out" if -code == signal.SIGKILL else ""
    return f"was killed by signal {-code} ({name}{why})"


def _open_ancestor(process: int) -> int | None:
    """Return a descriptor of a process, or None if it is no ancestor of this one."""
    here = os.getpid()
    while (status := read_status(here)) is not None and here > 1:
        here = status.parent
        if here == process:
            with suppress(OSError):
                return os.pidfd_open(process)
    return None
