"""A rank of a job, from its start to its end: ``python -m spmdsim.launch.bootstrap script.py args…``.

The process that the launcher started sets threads and MPI settings, before the program can import numpy or mpi4py. Then
it forks. The child runs the program. The parent is the rank's supervisor: it sees how the rank ends, informs the
starter, and leaves no orphan. Launchers do not name the rank and the signal of every death, and some let ranks run on
when the starter is killed. The supervisor forks before anything is loaded, so it shares its memory with the rank, and
sleeps.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from spmdsim.errors import InputError, SpmdError
from spmdsim.launch.logs import print_in_blocks, redirect_output
from spmdsim.launch.mpi import prepare
from spmdsim.launcher import (
    LAUNCHER,
    Launched,
    describe_host,
    detect,
    give_job_facts,
    read_job_facts,
)
from spmdsim.mpi_library import check_launcher
from spmdsim.reading import require_file
from spmdsim.shutdown import exit_notes
from spmdsim.shutdown.exit_notes import describe_death, note_left, to_shell_code
from spmdsim.shutdown.hooks import hook_threads
from spmdsim.shutdown.phase_watch import (
    CODE,
    WatchedProcess,
    describe_exit_in_start,
    run_beside,
    unwatch_mpi_import,
)
from spmdsim.shutdown.processes import (
    SIGNAL_WITH_PARENT,
    ProcessHandle,
    can_watch_processes,
    set_process_option,
)
from spmdsim.shutdown.stop import exit_now, find_active_world, note_exit_code, stop

if TYPE_CHECKING:
    from mpi4py import MPI

#: Signals that launchers pass on to their ranks, and with which a supervisor learns that time is up or the rank has ended.
SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGHUP", "SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGCONT", "SIGALRM", "SIGCHLD")
    if hasattr(signal, name)
)
#: Seconds for a rank to end after SIGTERM.
GRACE_SECONDS = 3
#: Seconds for the starter to end the job after a rank died.
ENDED_SECONDS = 5.0
#: Seconds between two looks for ranks that wait in MPI's start.
LOOK_SECONDS = 0.25
#: Seconds for MPI's start on a rank that stops before MPI has started: the start waits for all other ranks.
JOIN_SECONDS = 4.0


def run_rank(program: Callable[[Launched | None], int | None], name: str) -> int:
    """Run a program as a rank, or in the process of the user's command; return the exit code.

    If the program fails, end all ranks as :func:`guard` does. In a job of ``spmdsim launch`` the calling process
    forks first. The child runs the program and returns. The parent becomes the child's supervisor and never returns.

    Args:
        program: receives the job as the launcher describes it, None outside of a job; returns an exit code, or None for
            0.
        name: the program's name in error lines.
    """
    job = prepare()
    start_supervisor(job)

    def run() -> int | None:
        redirect_output(job.rank if job else 0)
        print_in_blocks()
        check_launcher(job)
        return program(job)

    return guard(run, name)


def guard(program: Callable[[], int | None], name: str) -> int:
    """Run a program, end all ranks if it fails, and return the exit code of this process.

    If the program returns a code other than 0 where MPI runs, the code is written to a note. A starter that reads the
    note needs no other code: then return 0, so that the launcher prints nothing.

    Args:
        program: returns its exit code, or None for 0, after its last call to other ranks.
        name: the program's name in error lines.
    """
    hook_threads()
    try:
        code = program() or 0
        note_left(code)
        return note_exit_code(code) if code and find_active_world() is not None else code
    except BaseException as error:
        return stop(error, name, _join_world)


def _join_world(text: str, code: int) -> MPI.Comm | None:
    """Start MPI in a rank that stops, to learn whether the other ranks stop, too.

    The other ranks start MPI sooner or later, to work or to stop. If MPI has not started after :data:`JOIN_SECONDS` (4), a
    child process prints ``text`` and ends the job.

    Args:
        text: why this rank stops.
        code: the exit code of the job, if the child process ends it.

    Returns:
        The communicator of all ranks. None if mpi4py cannot be imported, MPI does not start, or the launcher belongs to
        another MPI.
    """
    job = detect()

    def end_late_job(watched: WatchedProcess) -> None:
        if not watched.wait_for_end(JOIN_SECONDS):
            watched.end_job(
                f"rank {job.rank} of {job.size} stopped, the job ends:\n{text}" if job else text, code
            )

    try:
        check_launcher(job)
    except SpmdError:
        return None
    try:
        unwatch_mpi_import()  # the watch would print another cause than the error of this rank
        with run_beside(end_late_job):
            from mpi4py import MPI
    except (ImportError, RuntimeError):
        return None
    return MPI.COMM_WORLD


# -- the supervisor --------------------------------------------------------------------------------------


def start_supervisor(job: Launched | None) -> None:
    """Fork this process: the child goes on as the rank, the parent watches how the rank ends.

    So this function returns in the child only; the parent (supervisor) exits with the rank's exit code. It returns
    without a fork if one of these holds:

    - this process is not in a job;
    - no starter (``spmdsim launch``) can read the notes of this host about ended ranks;
    - a supervisor watches this process already;
    - the system cannot watch processes.

    The supervisor forwards signals to the rank. If the supervisor ends, the rank is killed. If the supervisor itself
    fails, the exit code is 1.

    In a job, SIGUSR1 is ignored from now on, also without a fork, until the program or the world sets a handler.

    Args:
        job: the job, as the launcher describes it; None outside of a job, where nothing is watched.
    """
    if (job is not None or read_job_facts()) and hasattr(signal, "SIGUSR1"):
        # The signal asks for the last calls or to stop. It must not kill a rank that does neither, or does not yet.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    exit_notes.prepare_host_folder()
    folder = exit_notes.find_job_folder()
    if job is None or folder is None or LAUNCHER in read_job_facts() or not can_watch_processes():
        return
    give_job_facts(os.environ, launcher=str(os.getppid()))
    sys.stdout.flush()
    sys.stderr.flush()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    supervisor = os.getpid()
    child = os.fork()
    if child == 0:
        set_process_option(SIGNAL_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != supervisor:  # the supervisor has ended already
            os._exit(1)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    handle = ProcessHandle(child)
    exit_notes.note_start(folder, job.rank)
    code = 1
    try:
        code = _Supervisor(handle, job, folder).watch()
    except Exception as error:
        sys.stderr.write(f"the supervisor of rank {job.rank} failed, the rank ends: {error!r}\n")
        sys.stderr.flush()
    finally:
        handle.send_signal(signal.SIGKILL)
        if exit_notes.is_on_other_host(folder):
            exit_notes.remove_host_folder(folder, job)
        exit_now(code)


class _Supervisor:
    """The parent of a rank's process: sees how the rank ends, and informs the starter.

    Attributes:
        child: the rank's process.
        job: the job, as the launcher describes it.
        folder: the folder of the job's notes.
        was_asked: True if the rank was asked to end, so that its end is no failure.
    """

    def __init__(self, child: ProcessHandle, job: Launched, folder: Path) -> None:
        self.child, self.job, self.folder = child, job, folder
        self.was_asked = False
        # Another host than the starter's has only the notes of its own ranks.
        self._seen_ranks = job.local_size if exit_notes.is_on_other_host(folder) else job.size

    def watch(self) -> int:
        """Wait for the end of the rank, and return its exit code as a shell states it.

        A shell states 128 + N for a process that signal N killed. If the rank was not asked to end, its death is reported
        (see :meth:`_report_death`).
        """
        set_process_option(SIGNAL_WITH_PARENT, signal.SIGTERM)
        ended = status = 0
        while not ended:
            self._receive_signal()
            ended, status = os.waitpid(self.child.process, os.WNOHANG)
        code = os.waitstatus_to_exitcode(status)
        if not self.was_asked:
            self._report_death(code)
        return to_shell_code(code)

    def _receive_signal(self, seconds: float | None = None) -> None:
        """Wait for a signal, and pass it on to the rank, with three exceptions.

        - SIGTERM is passed on, and the rank gets ``GRACE_SECONDS`` (3) to end: SIGALRM comes after them.
        - SIGALRM: kill the rank, which has not ended in time.
        - SIGCHLD says that the rank ended or stopped, so nothing is passed on.

        Args:
            seconds: the longest wait, after which this returns without a signal; None for no limit.
        """
        received = signal.sigwaitinfo(SIGNALS) if seconds is None else signal.sigtimedwait(SIGNALS, seconds)
        if received is None:
            return
        if received.si_signo == signal.SIGALRM:
            self.child.send_signal(signal.SIGKILL)
        elif received.si_signo != signal.SIGCHLD:
            if received.si_signo == signal.SIGTERM:
                self.was_asked = True
                signal.alarm(GRACE_SECONDS)  # the rank may be stopped or ignore the signal
            self.child.send_signal(received.si_signo)

    def _report_death(self, code: int) -> None:
        """Write a note of how the rank ended, if the rank has written none; end the job if it must.

        - If the rank has written a note of this end: the job goes on. If the rank ended with code 0 before it started MPI,
          first wait for the other ranks.
        - Else, if the code is not 0: write a note, and ask the starter (``spmdsim launch``) to end the job.
        - Else, such as after ``os._exit(0)``: write a note, and wait for the other ranks. If all end within ``ENDED_SECONDS``
          (5), the job has ended well. Otherwise they would hang, so ask the starter to end the job.

        Args:
            code: the rank's exit code; minus the number of the signal that killed it.
        """
        rank = self.job.rank
        if (code == 0 and (self.folder / f"rank_{rank}").exists()) or exit_notes.has_left(
            self.folder, rank, code
        ):
            if code == 0 and exit_notes.has_left_before_mpi(self.folder, rank):
                self._wait_for_others()
            return
        exit_notes.note_failure(to_shell_code(code), describe_death(code) + describe_host())
        end = time.monotonic() + ENDED_SECONDS
        # If all ranks call os._exit(0), the job has ended well. If only some do, the other ranks would hang.
        while code == 0 and len(exit_notes.list_ended_ranks(self.folder)) < self._seen_ranks:
            self._receive_signal(0.05)
            code = int(time.monotonic() > end)
        if code:
            self._end_job()

    def _end_job(self) -> None:
        """Ask the starter to end the job. Wait until it ends this process, too, at most ``ENDED_SECONDS`` (5)."""
        exit_notes.note_end()
        end = time.monotonic() + ENDED_SECONDS
        while not self.was_asked and time.monotonic() < end:
            self._receive_signal(0.05)

    def _wait_for_others(self) -> None:
        """Wait until the other ranks end, after this rank ended before it started MPI.

        If other ranks start MPI, end the job: they would wait in MPI's start for this rank. The launcher must not see
        that this rank ended. Some launchers do not name the rank then, and others let the ranks wait without end.
        """
        while not self.was_asked and len(exit_notes.list_ended_ranks(self.folder)) < self._seen_ranks:
            if waiting_ranks := exit_notes.list_ranks_starting_mpi(self.folder):
                exit_notes.note_failure(CODE, describe_exit_in_start(waiting_ranks) + describe_host())
                self._end_job()
                return
            self._receive_signal(LOOK_SECONDS)


# -- the program -----------------------------------------------------------------------------------------


def run_script(argv: list[str]) -> None:
    """Run a script or a module with its arguments as the main program.

    ``argv`` is ``script.py args…`` or ``-m module args…``.

    Raises:
        InputError: If this host has no such script or module. The error names the host if there are several.
    """
    if argv[:1] == ["-m"]:
        sys.argv = argv[1:]
        sys.path.insert(0, os.getcwd())
        require_module(argv[1])
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = argv
    try:
        require_file(argv[0], "script")
    except InputError as error:
        raise InputError(f"{error.message}{describe_host()}") from None
    sys.path.insert(0, str(Path(argv[0]).resolve().parent))
    runpy.run_path(argv[0], run_name="__main__")


def require_module(name: str) -> None:
    """Raise InputError if there is no module of this name, or if it is a package that cannot be run.

    Packages around the module are imported, as ``python -m`` does.
    """
    try:
        spec = find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            name += ".__main__"
            spec = find_spec(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise  # The packages exist, but one of them imports a module that does not.
        spec = None
    if spec is None:
        raise InputError(f"there is no module {name}{describe_host()}")


def main() -> int:
    """Run the command line's ``script.py args…`` or ``-m module args…`` as a rank.

    If ``spmdsim launch`` has set WORLD_SIZE, set RANK and LOCAL_RANK, too, as torchrun does.

    Returns the exit code of this process.
    """
    argv = sys.argv[1:]

    def program(job: Launched | None) -> None:
        # For programs that expect torchrun, `spmdsim launch` sets the number of ranks; each rank adds its own number.
        if job and os.environ.get("WORLD_SIZE") == str(job.size):
            os.environ |= {"RANK": str(job.rank), "LOCAL_RANK": str(job.rank)}
        run_script(argv)

    return run_rank(program, argv[1] if argv[0] == "-m" else Path(argv[0]).name)


if __name__ == "__main__":
    sys.exit(main())
