"""Start a command on N ranks, keep a log per rank, name the rank that failed, and say where is what the ranks called last."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from glob import escape
from pathlib import Path
from types import FrameType

from spmdsim.errors import InputError, WorldError, many, working_folder
from spmdsim.launch.environment import THREAD_VARIABLES, blas_threads, cores
from spmdsim.launch.logs import follow, log_path, log_tail, prepare_blocks, prepare_logs
from spmdsim.launch.mpi import find_launcher
from spmdsim.launch.supervisor import cause_of, code_of
from spmdsim.launcher import give_job_facts, launched
from spmdsim.settings import RANKS, RECORD
from spmdsim.shutdown.exit_notes import (
    ASKED,
    ENDING,
    RECORDING,
    Failure,
    find_unfinished_ranks,
    note_begin,
    read_begin,
    read_failures,
)
from spmdsim.shutdown.leftovers import remove_segments, remove_session
from spmdsim.shutdown.processes import SIGNAL_WITH_PARENT, set_process_option
from spmdsim.shutdown.stop import BEFORE_MPI
from spmdsim.sides import name_ranks

#: How long ranks may take to write it when a rank has died or the job is ended; longer than a busy machine needs.
WRITTEN_SECONDS = 5.0


#: How long the launcher may take to end by itself once all ranks have left it with a failure.
FAILED_SECONDS = 5.0
#: How long it may take to pass on what a rank said before it ends the job.
SAID_SECONDS = 0.3
#: How long the launcher may take to end its ranks after a signal.
GRACE_SECONDS = 2.0


class Recorded:
    """The files of one job in which its ranks write what they called last: it has them do so where none of them can."""

    def __init__(self, environment: Mapping[str, str], folder: Path) -> None:
        self.folder = folder
        asked = RECORD.read(environment)
        self.path = Path(asked) if asked else None
        self._before = self._files()

    def _files(self) -> set[tuple[Path, int]]:
        if self.path is None:
            return set()
        apart = self.path.parent.glob(f"{escape(self.path.stem)}.rank*{self.path.suffix}")
        return {(path, path.stat().st_mtime_ns) for path in (self.path, *apart) if path.is_file()}

    def written(self) -> list[Path]:
        """What the job has written."""
        return sorted(path for path, _ in self._files() - self._before)

    def is_empty(self) -> bool:
        """Return True if the user wants a file and no rank logs calls that it could write there."""
        return self.path is not None and not (self.folder / RECORDING).exists()

    def forward(self, process: subprocess.Popen[bytes], number: int) -> None:
        """Pass the user's signal on to the ranks. Print one line instead if no rank logs calls."""
        if self.is_empty():
            sys.stderr.write(self._explain_empty())
        else:
            process.send_signal(number)

    def _explain_empty(self) -> str:
        return (
            f"{self.path} is not written: the ranks log calls of an MPIWorld, and the program has made none\n"
        )

    def ask(self, process: subprocess.Popen[bytes], why: str = "") -> None:
        """Have the ranks that are left write, before they are ended, unless one has.

        Launchers that are ended give their ranks no time, so they are asked beforehand.
        """
        if self.path is None or self.is_empty() or self.written() or not hasattr(signal, "SIGUSR1"):
            return
        (self.folder / ASKED).write_text(why)
        process.send_signal(signal.SIGUSR1)
        end = time.monotonic() + WRITTEN_SECONDS
        while not self.written() and process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)

    def clear(self) -> None:
        """Remove what ranks had written half when they were killed, or left."""
        if self.path is not None:
            for half in self.path.parent.glob(f"{escape(self.path.stem)}.*.part"):
                half.unlink(missing_ok=True)

    def say(self) -> None:
        """Say where it is: after the end, since launchers drop what ranks say while they are ended."""
        if paths := self.written():
            sys.stderr.write(f"what the ranks called last is in {', '.join(map(str, paths))}\n")
        elif self.is_empty():
            sys.stderr.write(self._explain_empty())


#: Processes that are started on one machine.
MOST_STARTED = 8192


def require_startable(n: int, lockstep: bool = False) -> None:
    """Raise InputError if ``n`` ranks cannot be started: fewer than one, or more processes than a machine has room for."""
    if n < 1:
        raise InputError(f"cannot start {many(n, 'rank')}: at least 1 is needed")
    if not lockstep and n > MOST_STARTED:
        raise InputError(f"cannot start {many(n, 'rank')} on this machine: at most {MOST_STARTED:,}")


def start_command(
    n: int,
    argv: list[str],
    log_dir: Path | None = None,
    env: Mapping[str, str] | None = None,
    lockstep: bool = False,
    blocks: bool = False,
    echoes: bool = True,
) -> int:
    """Run ``argv`` on ``n`` ranks; see :func:`spmdsim.launch.start`."""
    require_startable(n, lockstep)
    if launched():
        raise WorldError("this process is an MPI rank already: it cannot start ranks of its own")
    working_folder()  # some launchers say no more than that there is none
    launcher = None if lockstep else find_launcher()
    if log_dir is not None:
        prepare_logs(log_dir)
    ranks = 1 if lockstep else n
    with tempfile.TemporaryDirectory(prefix="spmdsim-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        note_begin(folder)
        if launcher is None:
            environment, command = {**os.environ, RANKS.name: str(n)}, argv
        else:
            environment = rank_environment(n) | launcher.environment()
            command = launcher.command(n, oversubscribe=n > cores()) + argv
        environment |= env or {}
        give_job_facts(environment, folder=name, starter=str(os.getpid()))
        shown = None
        if log_dir is not None:
            give_job_facts(environment, logs=str(log_dir.resolve()))
            shown = log_path(log_dir, 0) if echoes else None
        elif blocks and launcher is not None:
            shown = prepare_blocks(folder, environment)
        by = signal.SIGTERM if launcher is None else launcher.ended_by
        recorded = Recorded(environment, folder)
        # Some launchers pass Ctrl-C on, and every rank would tell where it was: ended, they are quiet.
        ctrl_c = signal.SIGINT if launcher is None else signal.SIGTERM
        code = wait(command, environment, shown, partial(job_ends, folder, ranks), by, recorded, ctrl_c)
        recorded.clear()
        clear_up(read_begin(folder), hurried=code == 0)
        notes = read_failures(folder)
        failed = worst(notes, ranks)
        unfinished = [] if code or notes else find_unfinished_ranks(folder)
        if code == 128 + signal.SIGINT and launcher is not None:  # else the program has said it
            sys.stderr.write("interrupted\n")
        if unfinished:
            # MPICH's launcher reports success after an abort with code 0.
            sys.stderr.write(
                f"{name_ranks(unfinished)} of {ranks} ended without finishing the program, as MPI_Abort(comm, 0) has it\n"
            )
            code = 1
        if failed is not None or code:
            recorded.say()
        if failed is not None:
            alike = len(notes) == ranks and len({note.code for note in notes}) == 1
            if failed.cause and not (alike and failed.cause.startswith(BEFORE_MPI)):  # they have all said why
                sys.stderr.write(f"rank {failed.rank} of {ranks} {failed.cause}, the job ends\n")
            if log_dir is not None:
                sys.stderr.write(log_tail(log_dir, failed.rank, failed.code))
            return failed.code
        if code < 0:
            who = "the program" if launcher is None else launcher.path
            sys.stderr.write(f"{who} {cause_of(code)}, the job ends\n")
        elif code and log_dir is not None:
            sys.stderr.write(f"a rank ended without a word (exit code {code}); the logs are in {log_dir}\n")
        return code_of(code)


def worst(failed: list[Failure], ranks: int) -> Failure | None:
    """The failure that ended the job: the first one, of ranks that left without a code only if not all did.

    >>> worst([Failure(1, 0, "left"), Failure(0, 137, "was killed")], 2)
    Failure(rank=0, code=137, cause='was killed')
    """
    left = failed[0]._replace(code=1) if 0 < len(failed) < ranks else None
    return next((failure for failure in failed if failure.code), left)


def clear_up(since: float, hurried: bool) -> None:
    """Remove what a job left in shared memory; after a failure its ranks may just be ending."""
    end = time.monotonic() + (0.0 if hurried else GRACE_SECONDS)
    while remove_segments(since) and time.monotonic() < end:
        time.sleep(0.05)


def rank_environment(n: int) -> dict[str, str]:
    """The environment of the ranks: this one's, with BLAS threads that fit."""
    threads = dict.fromkeys(THREAD_VARIABLES, str(blas_threads(n, cores())))
    return {**({} if "OMP_NUM_THREADS" in os.environ else threads), **os.environ}


def job_ends(folder: Path, n: int) -> float | None:
    """Seconds that the launcher still has: few once a rank ends the job, more when all ``n`` ranks have left it."""
    if (folder / ENDING).exists():
        return SAID_SECONDS
    return FAILED_SECONDS if len(list(folder.glob("rank_*"))) == n else None


class Terminated(Exception):
    """This process was asked to end."""


def wait(
    command: list[str],
    environment: Mapping[str, str],
    shown: Path | None,
    ending: Callable[[], float | None],
    by: int,
    recorded: Recorded,
    ctrl_c: int,
) -> int:
    """Run the launcher to its end, and echo a file; Ctrl-C (as ``ctrl_c``) and termination are passed on, and end it for certain."""
    stop, echo, dies = (
        threading.Event(),
        None,
        partial(set_process_option, SIGNAL_WITH_PARENT, signal.SIGTERM),
    )
    process = subprocess.Popen(command, env=dict(environment), start_new_session=True, preexec_fn=dies)
    if shown is not None:
        echo = threading.Thread(target=follow, args=(shown, stop), daemon=True)
        echo.start()

    def terminated(*_: object) -> None:
        raise Terminated  # a handler could not wait for the launcher itself

    def passed_on(number: int, _: object) -> None:
        recorded.forward(process, number)

    try:
        with answered("SIGTERM", terminated), answered("SIGUSR1", passed_on):
            return wait_for(process, ending, by, recorded)
    except (KeyboardInterrupt, Terminated) as error:
        with_signal = signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM
        recorded.ask(process, with_signal.name)
        end(process, ctrl_c if with_signal == signal.SIGINT else with_signal)
        if with_signal == signal.SIGTERM:
            sys.stderr.write("spmdsim launch: ended by SIGTERM, with all ranks\n")
        return 128 + with_signal
    finally:
        stop.set()
        remove_session(process.pid)
        if echo is not None:
            echo.join()


def wait_for(
    process: subprocess.Popen[bytes], ending: Callable[[], float | None], by: int, recorded: Recorded
) -> int:
    """Wait for the launcher; once the job is ``ending`` it must end soon, or is ended ``by`` a signal.

    Launchers sometimes hang while they clean up after a failure.
    """
    deadline = math.inf
    while True:
        try:
            return process.wait(0.2)
        except subprocess.TimeoutExpired:
            seconds = ending()
            if seconds is not None:
                deadline = min(deadline, time.monotonic() + seconds)
            if time.monotonic() > deadline:
                recorded.ask(process)
                end(process, by)


@contextmanager
def answered(name: str, handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Have a signal answered by a handler, where there is such a signal and handlers can be set."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, name):
        yield
        return
    before = signal.signal(getattr(signal, name), handler)
    try:
        yield
    finally:
        signal.signal(getattr(signal, name), before)


def end(process: subprocess.Popen[bytes], with_signal: int) -> None:
    """Ask the launcher to stop its ranks; after a grace period, stop the whole group."""
    process.send_signal(with_signal)
    try:
        process.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
