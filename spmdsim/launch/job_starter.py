"""Start a command on N ranks, wait for it, keep a log per rank, and name the rank that failed."""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from glob import escape
from pathlib import Path
from types import FrameType

from spmdsim.errors import InputError, WorldError, many, working_folder
from spmdsim.launch.hosts import Host, count_slots, read_task_count, spread_ranks
from spmdsim.launch.logs import echo_file, find_log, format_log_tail, prepare_blocks, prepare_logs
from spmdsim.launch.mpi import (
    THREAD_VARIABLES,
    Launcher,
    count_blas_threads,
    count_cores,
    find_launcher,
    list_exported_variables,
)
from spmdsim.launcher import give_job_facts, launched
from spmdsim.settings import RANKS, RECORD
from spmdsim.shutdown.exit_notes import (
    ASKED,
    ENDING,
    RECORDING,
    STOPPED,
    Failure,
    describe_death,
    find_unfinished_ranks,
    note_begin,
    read_begin,
    read_failures,
    to_shell_code,
    was_stopped_by_user,
    write_note,
)
from spmdsim.shutdown.hooks import set_hooks
from spmdsim.shutdown.note_server import NoteServer
from spmdsim.shutdown.processes import (
    SIGNAL_WITH_PARENT,
    close_descriptors,
    kill_session,
    remove_segments,
    remove_session,
    set_process_option,
)
from spmdsim.shutdown.stop import BEFORE_MPI
from spmdsim.sides import name_ranks

#: Seconds for the ranks to write their last calls after a death.
RECORD_SECONDS = 5.0
#: Seconds for the launcher to end by itself after all ranks have failed.
FAILED_SECONDS = 5.0
#: Seconds for the launcher to forward the prints of a rank that ends the job.
FORWARD_SECONDS = 0.3
#: Seconds for the launcher to end its ranks after a signal.
GRACE_SECONDS = 2.0
#: The largest number of processes that are started on one machine.
MOST_STARTED = 8192


def start(
    n: int,
    argv: Sequence[str],
    log_dir: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    *,
    lockstep: bool = False,
    blocks: bool = False,
    shown: bool = True,
    hosts: Sequence[Host] = (),
) -> int:
    """Run a command on ``n`` ranks, wait for it, and return the exit code of the job.

    Args:
        n: number of ranks.
        argv: the command of each rank, such as ``[sys.executable, "script.py"]``.
        log_dir: write ``worker_N.log`` per rank there, and echo rank 0.
        env: variables to add to the environment of the ranks.
        lockstep: start one process that plays all ranks instead, without MPI.
        blocks: write each print of a rank of ``spmdsim.launch.bootstrap`` in one piece, not mixed with lines of other
            ranks. It has no effect with ``log_dir`` or in lock step.
        shown: echo rank 0 if there are logs.
        hosts: the hosts to start ranks on, with their slots; empty for this machine, or for the hosts of the batch job.

    Returns:
        0 if every rank ended well, else the exit code of the rank that failed first. If no rank failed by itself, it
        is the launcher's: 130 after Ctrl-C, 143 after SIGTERM.

    Raises:
        WorldError: If no MPI is installed, or none that fits the installed mpi4py; or if this process is a rank itself.
        InputError: If ``n`` is less than 1 or greater than ``MOST_STARTED`` (8,192).
    """
    require_startable(n, lockstep, on_hosts=bool(hosts))
    if launched():
        raise WorldError("this process is an MPI rank already: it cannot start ranks of its own")
    working_folder()  # raises a clearer error than launchers if the folder does not exist
    launcher = None if lockstep else find_launcher()
    logs = None if log_dir is None else Path(log_dir)
    if logs is not None:
        prepare_logs(logs)
    with tempfile.TemporaryDirectory(prefix="spmdsim-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        begin = note_begin(folder)
        environment = {**make_environment(launcher, n, hosts), **(env or {})}
        give_job_facts(environment, folder=name)
        echoed = None
        if logs is not None:
            give_job_facts(environment, logs=str(logs.resolve()))
            echoed = find_log(logs, 0) if shown else None
        elif blocks and launcher is not None:
            echoed = prepare_blocks(folder, environment)
        last_calls = LastCallFiles(environment, folder)
        command = [*list_launcher_words(launcher, n, hosts, environment), *argv]
        ranks = 1 if lockstep else n
        has_other_hosts = launcher is not None and bool(hosts or read_task_count(os.environ))
        with receive_notes(folder, environment) if has_other_hosts else nullcontext():
            code = run_launcher(launcher, command, environment, echoed, ranks, last_calls)
        last_calls.remove_partial_files()
        # Not read from the folder: a batch system removes it while it ends the job.
        remove_leftovers(begin, 0.0 if code == 0 else GRACE_SECONDS)
        return report_end(code, ranks, folder, launcher, logs, last_calls)


@contextmanager
def receive_notes(folder: Path, environment: MutableMapping[str, str]) -> Iterator[None]:
    """Write the notes of ranks on other hosts into the job's folder during the block.

    A note is a small named file by which ranks and starter report to each other. Of two notes of one name, the first is
    kept. Yield None.

    Args:
        folder: the folder of the notes.
        environment: the environment of the ranks, to which the address for notes is added.
    """
    server = NoteServer(lambda note, text: write_note(folder / note, text, keep_first=True))
    give_job_facts(environment, server=server.address.to_text())
    try:
        yield
    finally:
        server.close()


def make_environment(launcher: Launcher | None, n: int, hosts: Sequence[Host] = ()) -> dict[str, str]:
    """Return the environment of a job's ranks.

    It has this process's variables, those that the launcher needs, and the number of BLAS threads.

    All ranks get an equal number of threads, because results of BLAS depend on it: this machine's number of cores
    divided by the largest number of ranks on a host. The number is not set in two cases: in a batch job without
    ``hosts``, where each rank divides its host's cores by the ranks there, and if the user has set OMP_NUM_THREADS.

    Args:
        launcher: None in lock step: the number of ranks is set, and no threads.
        n: the number of ranks.
        hosts: the hosts with their slots; empty for this machine or those of the batch job.
    """
    if launcher is None:
        return {**os.environ, RANKS.name: str(n)}
    threads: dict[str, str] = {}
    if "OMP_NUM_THREADS" not in os.environ and (hosts or not read_task_count(os.environ)):
        local_size = max(host.slots for host in spread_ranks(hosts, n)) if hosts else n
        threads = dict.fromkeys(THREAD_VARIABLES, str(count_blas_threads(local_size, count_cores())))
    return {**threads, **os.environ, **launcher.choose_variables()}


def list_launcher_words(
    launcher: Launcher | None, n: int, hosts: Sequence[Host], environment: Mapping[str, str]
) -> list[str]:
    """Return the launcher's command before the program: its path and its options; [] in lock step.

    The options allow more ranks than slots if ``n`` needs them. Slots are the slots of ``hosts``, else the tasks of
    the batch job, else this machine's cores.

    Args:
        launcher: None in lock step.
        n: the number of ranks.
        hosts: the hosts with their slots; empty for this machine or those of the batch job.
        environment: the environment of the ranks.
    """
    if launcher is None:
        return []
    slots = count_slots(hosts) or read_task_count(environment) or count_cores()
    spread = spread_ranks(hosts, n) if hosts else []
    return launcher.make_command(n, n > slots, spread, list_exported_variables(environment))


def start_self(
    n: int,
    argv: Sequence[str],
    log_dir: str | os.PathLike[str] | None = None,
    hosts: Sequence[Host] = (),
) -> int:
    """Run ``python -m spmdsim <argv>`` on ``n`` ranks, and return the exit code.

    Commands call this function to run themselves on several ranks.

    Args:
        n: number of ranks.
        argv: the command's words.
        log_dir: as of :func:`start`.
        hosts: as of :func:`start`.
    """
    return start(n, [sys.executable, "-m", "spmdsim", *argv], log_dir, hosts=hosts)


def end_job_on_error(name: str = "program") -> None:
    """Make an uncaught exception of this rank, or of one of its threads, end the whole job.

    Importing the package does so in every process that a launcher started. This function is for programs that set hooks
    of their own before, or that want another name in error lines.
    """
    set_hooks(name)


def require_startable(n: int, lockstep: bool = False, on_hosts: bool = False) -> None:
    """Raise InputError if ``n`` is less than 1, or more than this machine starts.

    One machine starts at most ``MOST_STARTED`` (8,192) processes. There is no limit in lock step and on named hosts.

    Args:
        n: the number of ranks.
        lockstep: one process plays all ranks.
        on_hosts: the user has named the hosts.
    """
    if n < 1:
        raise InputError(f"cannot start {many(n, 'rank')}: at least 1 is needed")
    if not lockstep and not on_hosts and n > MOST_STARTED:
        raise InputError(f"cannot start {many(n, 'rank')} on this machine: at most {MOST_STARTED:,}")


class LastCallFiles:
    """The files of ``--record`` to which the ranks of one job write their last calls."""

    def __init__(self, environment: Mapping[str, str], folder: Path) -> None:
        self.folder = folder
        name = RECORD.read(environment)
        self.path = Path(name) if name else None
        self._older_files = self._list_files()

    def _list_files(self) -> set[tuple[Path, int]]:
        """Return the existing files, each with its modification time in nanoseconds.

        The files are the one that the user named, and those of ranks on other machines, ``NAME.rank*``.
        """
        if self.path is None:
            return set()
        rank_files = self.path.parent.glob(f"{escape(self.path.stem)}.rank*{self.path.suffix}")
        return {(path, path.stat().st_mtime_ns) for path in (self.path, *rank_files) if path.is_file()}

    def list_written(self) -> list[Path]:
        """Return the files that the job has written, in the order of their paths."""
        return sorted(path for path, _ in self._list_files() - self._older_files)

    def is_empty(self) -> bool:
        """Return True if the user wants a file and no rank logs calls that it could write there."""
        return self.path is not None and not (self.folder / RECORDING).exists()

    def forward(self, process: subprocess.Popen[bytes], number: int) -> None:
        """Pass the user's signal on to the ranks.

        Also print a line if the user wants a file and no rank logs calls.
        """
        if self.is_empty():
            sys.stderr.write(self._explain_empty())
        process.send_signal(number)

    def _explain_empty(self) -> str:
        """Return the line for a file that the job has not written."""
        return (
            f"{self.path} is not written: the ranks log calls of an MPIWorld, and the program has made none\n"
        )

    def request(self, process: subprocess.Popen[bytes], reason: str = "") -> None:
        """Ask the ranks that still run to write their last calls, and wait until there is a file.

        The wait takes ``RECORD_SECONDS`` (5) at most. Return at once if the user wants no file, no rank logs calls, a
        rank has written already, or the system has no SIGUSR1. Call this before the launcher ends, because it ends
        its ranks.

        Args:
            process: the launcher.
            reason: the reason for the end of the job, which the files name; empty if the ranks know it.
        """
        if self.path is None or self.is_empty() or self.list_written() or not hasattr(signal, "SIGUSR1"):
            return
        write_note(self.folder / ASKED, reason)
        process.send_signal(signal.SIGUSR1)
        end = time.monotonic() + RECORD_SECONDS
        while not self.list_written() and process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)

    def remove_partial_files(self) -> None:
        """Remove files that ranks had not finished when they ended."""
        if self.path is not None:
            for partial_file in self.path.parent.glob(f"{escape(self.path.stem)}.*.part"):
                partial_file.unlink(missing_ok=True)

    def print_paths(self) -> None:
        """Print where the files are, after the end: launchers drop what ranks print while they are ended."""
        if paths := self.list_written():
            sys.stderr.write(f"what the ranks called last is in {', '.join(map(str, paths))}\n")
        elif self.is_empty():
            sys.stderr.write(self._explain_empty())


def report_end(
    code: int,
    ranks: int,
    folder: Path,
    launcher: Launcher | None,
    logs: Path | None,
    last_calls: LastCallFiles,
) -> int:
    """Print to stderr why a job ended, and return its exit code for the shell.

    - If a rank failed: the exit code of the failure that ended the job (see :func:`choose_failure`).
    - Else, if the launcher reports success, but some ranks have not finished the program: 1.
    - Else: the launcher's code; 128 + N if signal N killed the launcher.

    After a failure or another code than 0, the paths of the files with the last calls are printed, too. After a
    failure, the end of the failed rank's log is printed if there are logs. After Ctrl-C, "interrupted" is printed. If
    all ranks fail with one exit code before MPI starts, no line is printed for it: each rank has printed its own error.

    Args:
        code: the launcher's exit code; minus the number of the signal that killed it.
        ranks: the number of processes that were started.
        folder: the folder of the notes in which ranks state how they ended.
        launcher: None for a job in lock step.
        logs: the folder of their logs, if they have any.
        last_calls: the files of their last calls.
    """
    failures = read_failures(folder)
    failure = choose_failure(failures, ranks)
    unfinished = [] if code or failures else find_unfinished_ranks(folder)
    if code == 128 + signal.SIGINT and launcher is not None:  # in lock step the program prints it
        sys.stderr.write("interrupted\n")
    if unfinished:
        # MPICH's launcher reports success after an abort with code 0.
        sys.stderr.write(
            f"{name_ranks(unfinished)} of {ranks} ended without finishing the program, as MPI_Abort(comm, 0) has it\n"
        )
        code = 1
    if failure is not None or code:
        last_calls.print_paths()
    if failure is not None:
        all_equal = len(failures) == ranks and len({rank_failure.code for rank_failure in failures}) == 1
        # If all ranks fail before MPI starts, each of them has printed its own error.
        if failure.cause and not (all_equal and failure.cause.startswith(BEFORE_MPI)):
            sys.stderr.write(f"rank {failure.rank} of {ranks} {failure.cause}, the job ends\n")
        if logs is not None:
            sys.stderr.write(format_log_tail(logs, failure.rank, failure.code))
        return failure.code
    if code < 0:
        program = "the program" if launcher is None else launcher.path
        sys.stderr.write(f"{program} {describe_death(code)}, the job ends\n")
    elif code and logs is not None and not was_stopped_by_user(folder):
        sys.stderr.write(f"a rank ended without a word (exit code {code}); the logs are in {logs}\n")
    return to_shell_code(code)


def choose_failure(failures: Sequence[Failure], ranks: int) -> Failure | None:
    """Return the failure that ended the job: the first one with an exit code that is not 0.

    If all codes are 0 and not all ranks wrote a note, return the first failure with code 1. Return None if no rank
    has failed, or all ranks have noted the code 0.

    Args:
        failures: the notes of ranks that ended without finishing the program, in the order of time.
        ranks: the number of processes that were started.

    >>> choose_failure([Failure(1, 0, "left"), Failure(0, 137, "was killed")], 2)
    Failure(rank=0, code=137, cause='was killed')
    """
    early_exit = failures[0]._replace(code=1) if 0 < len(failures) < ranks else None
    return next((failure for failure in failures if failure.code), early_exit)


def remove_leftovers(since: float, seconds: float) -> None:
    """Remove the shared memory of a job whose launcher has ended.

    Args:
        since: when the job began, by the file system's clock, in seconds since 1970.
        seconds: the longest wait for ranks that still use some of the memory; then it stays.
    """
    end = time.monotonic() + seconds
    while remove_segments(since) and time.monotonic() < end:
        time.sleep(0.05)


def find_remaining_seconds(folder: Path, n: int) -> float | None:
    """Return the seconds that the launcher may still run; None for no limit.

    They are ``FORWARD_SECONDS`` (0.3) if a rank has asked to end the job, else ``FAILED_SECONDS`` (5) if all ranks
    have noted a failure, else None.

    Args:
        folder: the folder of the ranks' notes.
        n: the number of ranks.
    """
    if (folder / ENDING).exists():
        return FORWARD_SECONDS
    return FAILED_SECONDS if len(list(folder.glob("rank_*"))) == n else None


# -- the launcher's process ------------------------------------------------------------------------------


def run_launcher(
    launcher: Launcher | None,
    command: list[str],
    environment: Mapping[str, str],
    echoed: Path | None,
    ranks: int,
    last_calls: LastCallFiles,
) -> int:
    """Run the launcher of a job to its end, and return its exit code.

    - SIGUSR1 is passed on to the ranks. They write their last calls with ``--record``, and stop with a ``StopRequest``.
    - Ctrl-C and SIGTERM end the job; the code is then 130 or 143.
    - If a failed job does not end within some seconds, it is ended (see :func:`find_remaining_seconds`).
    - If this process is killed, another one ends the job (see :func:`end_job_with_starter`).

    Args:
        launcher: None for a job in lock step.
        command: the launcher's command, or the program's.
        environment: its environment variables.
        echoed: a file that grows, such as the log of rank 0; it is printed while the launcher runs. None for no file.
        ranks: the number of ranks.
        last_calls: the files of the last calls.
    """
    folder = last_calls.folder
    end_with_starter = partial(set_process_option, SIGNAL_WITH_PARENT, signal.SIGTERM)
    process = subprocess.Popen(
        command, env=dict(environment), start_new_session=True, preexec_fn=end_with_starter
    )

    # A handler must not raise: Popen.wait would not release its lock, and the next wait would never return.
    requests: list[int] = []

    def note_request(number: int, _: object) -> None:
        requests.append(number)

    def forward(number: int, _: object) -> None:
        last_calls.forward(process, number)

    end_signal = signal.SIGTERM if launcher is None else launcher.ended_by
    remaining_seconds = partial(find_remaining_seconds, folder, ranks)
    with end_job_with_starter(process.pid, folder), echo_file_beside(echoed):
        try:
            with handle_signal("SIGTERM", note_request), handle_signal("SIGUSR1", forward):
                with handle_signal("SIGINT", note_request):
                    code = wait_for_launcher(process, remaining_seconds, end_signal, last_calls, requests)
                if code is not None:
                    return code
                number = signal.Signals(requests[0])
                return end_on_request(process, number, last_calls, in_lock_step=launcher is None)
        finally:
            if process.poll() is None:  # another Ctrl-C came while the job was ended
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            remove_session(process.pid)


def end_on_request(
    process: subprocess.Popen[bytes], number: signal.Signals, last_calls: LastCallFiles, *, in_lock_step: bool
) -> int:
    """End a job because a signal asked for it, and return the exit code: 130 for SIGINT, 143 for SIGTERM.

    Ranks are told that the user ends the job, and write their last calls. The process then gets SIGTERM; only a program in
    lock step gets SIGINT for SIGINT. For SIGTERM a line on stderr says that the job was ended.

    Args:
        process: the launcher, or the program in lock step.
        number: the signal.
        last_calls: the files of the last calls.
        in_lock_step: True if the process is the program itself.
    """
    write_note(last_calls.folder / STOPPED, "")
    last_calls.request(process, number.name)
    # Some launchers forward Ctrl-C, and every rank would print a traceback. Ranks that get SIGTERM print nothing.
    is_alone = in_lock_step and number == signal.SIGINT
    terminate(process, signal.SIGINT if is_alone else signal.SIGTERM)
    if number == signal.SIGTERM:
        sys.stderr.write("spmdsim launch: ended by SIGTERM, with all ranks\n")
    return 128 + number


@contextmanager
def echo_file_beside(path: Path | None) -> Iterator[None]:
    """Print the file at ``path`` as it grows, inside of the block, from a thread; yield None.

    Nothing is printed for None.
    """
    if path is None:
        yield
        return
    has_ended = threading.Event()
    echo = threading.Thread(target=echo_file, args=(path, has_ended), daemon=True)
    echo.start()
    try:
        yield
    finally:
        has_ended.set()
        echo.join()


@contextmanager
def end_job_with_starter(launcher: int, folder: Path) -> Iterator[None]:
    """End the job if this process is killed inside of the block; yield None.

    A forked process waits until this process is killed. It then sends SIGTERM to the launcher, and kills what is left of
    its session after at most ``GRACE_SECONDS`` (2), since some launchers hang. Finally it removes the launcher's files,
    ``folder``, and the job's shared memory that no process uses any more. At the end of the block, also after an error,
    the forked process exits without doing anything. Without ``os.fork`` nothing is done.

    Args:
        launcher: the process number of the launcher, the leader of a session.
        folder: the folder of the job's notes.
    """
    if not hasattr(os, "fork"):
        yield
        return
    begin = read_begin(folder)
    read_end, write_end = os.pipe()  # if this process is killed, the system closes its write end
    with warnings.catch_warnings():
        # Python warns of forking a process with threads, such as the server of notes.
        warnings.simplefilter("ignore", DeprecationWarning)
        watcher = os.fork()
    if watcher == 0:
        try:
            os.setsid()
            os.close(write_end)
            os.dup2(read_end, 0)
            close_descriptors(1)
            if not os.read(0, 1):
                with suppress(ProcessLookupError):
                    os.kill(launcher, signal.SIGTERM)
                kill_session(launcher, GRACE_SECONDS)
                remove_session(launcher)
                shutil.rmtree(folder, ignore_errors=True)
                remove_leftovers(begin, GRACE_SECONDS)
        finally:
            os._exit(0)
    os.close(read_end)
    try:
        yield
    finally:
        with suppress(OSError):  # the watcher was killed
            os.write(write_end, b".")
        os.close(write_end)
        os.waitpid(watcher, 0)


def wait_for_launcher(
    process: subprocess.Popen[bytes],
    remaining_seconds: Callable[[], float | None],
    end_signal: int,
    last_calls: LastCallFiles,
    requests: Sequence[int],
) -> int | None:
    """Wait for the launcher, and return its exit code; end it if it runs too long after a failure.

    Return None as soon as a signal asks to end the job.

    Launchers sometimes hang while they clean up. So ``remaining_seconds`` is called about five times a second. As soon as
    it returns a number, the launcher must end within these seconds. Otherwise the last calls of ranks are requested, and
    the launcher gets ``end_signal``.

    Args:
        process: the launcher.
        remaining_seconds: returns the seconds that the launcher may still run, None for no limit; see
            :func:`find_remaining_seconds`.
        end_signal: the signal that ends the launcher.
        last_calls: the files of the last calls.
        requests: the signals that asked to end the job; a handler adds them.
    """
    deadline = math.inf
    while not requests:
        try:
            return process.wait(0.2)
        except subprocess.TimeoutExpired:
            seconds = remaining_seconds()
            if seconds is not None:
                deadline = min(deadline, time.monotonic() + seconds)
            if time.monotonic() > deadline:
                last_calls.request(process)
                terminate(process, end_signal)
    return None


@contextmanager
def handle_signal(name: str, handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Set a signal handler for the duration of the block, then restore the earlier one.

    Do nothing if the platform lacks the signal, or this is not the main thread, which alone can set handlers. Ctrl-C
    stays ignored if it is: shells ignore it for jobs in the background. Yield None.

    Args:
        name: the name of the signal, such as "SIGTERM".
        handler: called with the number of the signal and the interrupted frame (None: no Python code ran).
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, name):
        yield
        return
    before = signal.getsignal(getattr(signal, name))
    if name == "SIGINT" and before is signal.SIG_IGN:
        yield
        return
    signal.signal(getattr(signal, name), handler)
    try:
        yield
    finally:
        signal.signal(getattr(signal, name), before)


def terminate(process: subprocess.Popen[bytes], end_signal: int) -> None:
    """Ask the launcher to stop its ranks, and wait for its end.

    After ``GRACE_SECONDS`` (2), kill its process group. Processes that it leaves behind are killed ``GRACE_SECONDS``
    after its end.

    Args:
        process: the launcher.
        end_signal: the signal that asks it.
    """
    process.send_signal(end_signal)
    try:
        process.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    kill_session(process.pid, GRACE_SECONDS)
