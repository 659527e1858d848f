"""Two phases of a rank, watched from a child process: the start of MPI and the shutdown of the interpreter.

Ranks wait for each other in both phases, and no thread of Python runs. A rank that never comes, or that stays in a
thread, an ``atexit`` handler or a ``__del__``, would keep all others waiting without end and without a word. The main
program between the phases may take as long as it likes.
"""

from __future__ import annotations

import faulthandler
import math
import os
import re
import select
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, NoReturn

from spmdsim import settings
from spmdsim.errors import InputError, LauncherError, many
from spmdsim.launcher import Launched, advise_start, detect
from spmdsim.mpi_library import check_launcher
from spmdsim.shutdown.exit_notes import (
    find_job_folder,
    has_started_mpi,
    note_end,
    note_failure,
    noting_mpi_start,
)
from spmdsim.shutdown.processes import (
    OPEN_MPI_SEGMENTS,
    ProcessHandle,
    list_mapped_files,
    list_processes,
    read_status,
    unlink_segments,
)
from spmdsim.shutdown.stop import BEFORE_MPI, PACKAGE, ask_launcher_to_end, is_users_file, write_line
from spmdsim.sides import name_ranks

#: Seconds that a rank waits at least for the others to start MPI, whatever ``SPMDSIM_DEADLINE`` says of calls; and
#: between two lines that say so. Large programs take a minute to import.
DEADLINE, SIGNS = 60.0, 10.0
#: Seconds between two looks at the processes of the ranks.
LOOK_SECONDS = 0.5
#: Seconds until a rank without a process counts as gone. Launchers start their processes one after the other.
GONE_SECONDS = 3.0
#: Seconds that the other ranks give the first one to print the line.
LATER_SECONDS = 2.0
#: Seconds that a process has to end after its launcher was asked to end the job. It may still print.
KILL_SECONDS = 1.0
#: The exit code of a job that ends so.
CODE = 2
#: Seconds for the other ranks to fail, too, before a rank that fails ends the job by its launcher; and more seconds for
#: each rank, so that only the first of them prints the line.
ALONE_SECONDS, APART_SECONDS = 1.0, 0.3
#: Seconds for a process to write its stacks.
ANSWER_SECONDS = 1.0
#: The place of a process in a function that is not written in Python.
NO_LINES = "a function without lines of Python"
#: Marks of the watched process: it waits for other ranks, or goes on.
WAITS, GOES_ON = b"w", b"g"
#: The signal that has a process write the stacks of its threads.
STACK_SIGNAL = getattr(signal, "SIGUSR2", signal.SIGTERM)
_THREAD = re.compile(r"hread 0x([0-9a-f]+)")
_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')


def check_size(size: int, vendor: str, job: Launched | None) -> None:
    """Raise LauncherError if MPI has another number of ranks than the launcher has started.

    The message names the command that starts a job with this MPI.

    Args:
        size: the number of ranks of MPI.
        vendor: the vendor of MPI's library, for the message.
        job: the job, as the launcher describes it; None outside of a launcher.
    """
    if job is None or job.size == size:
        return
    raise LauncherError(
        f"the launcher ({job.launcher}) started {many(job.size, 'rank')}, but MPI ({vendor}, through mpi4py) "
        f"sees {size}: {advise_start(job, vendor)}"
    )


def start_mpi() -> None:
    """Import ``mpi4py.MPI``, which starts MPI, and watch that all ranks come.

    All worlds of this package start MPI here. A rank waits in the import for all others. A child process ends the job
    if another rank does not come before the deadline: ``SPMDSIM_DEADLINE``, but at least :data:`DEADLINE` seconds.
    Nothing is watched without a launcher, for one rank, or if the program has started MPI before by its own import.

    Raises:
        ImportError: If mpi4py is missing.
        RuntimeError: If mpi4py finds no MPI library.
        LauncherError: If the launcher belongs to another MPI.
    """
    job = detect()
    if job is None or job.size == 1 or "mpi4py.MPI" in sys.modules:
        import mpi4py.MPI
    else:
        unwatch_mpi_import()
        with _watch_mpi_start(job, max(DEADLINE, read_deadline())):  # the child would repeat a warning
            import mpi4py.MPI  # noqa: F401
    if job is None:
        unlink_segments(OPEN_MPI_SEGMENTS)


@contextmanager
def _watch_mpi_start(job: Launched, deadline: float) -> Iterator[None]:
    """Note that this rank starts MPI in the block, and watch for missing ranks meanwhile.

    A child process watches. It ends the job if a rank has left the program, or does not come until the deadline.
    Without a deadline under ``spmdsim launch``, no child starts: the supervisors of the ranks watch.

    Args:
        job: the job, as the launcher describes it.
        deadline: the seconds that this rank waits for ranks that have not left; infinity for no deadline.

    Yields:
        None, once.

    Raises:
        LauncherError: If the launcher belongs to another MPI; MPI is not started then.
    """
    check_launcher(job)
    with noting_mpi_start():
        if math.isinf(deadline) and find_job_folder() is not None:
            yield
            return
        with run_beside(lambda watched: _watch_start(watched, job, deadline)):
            yield


class _MpiImport(MetaPathFinder, Loader):
    """Finder and loader of ``mpi4py.MPI`` that watches the program's own import if it starts MPI.

    A rank waits in this import for all other ranks. A look into ``sys.modules`` cannot replace the hook: while the rank
    waits, none of its threads runs, and another process cannot see its modules. Another process sees that the library
    is mapped, but not whether MPI has started since; so the rank itself must note the begin and the end of the import.
    ``mpi4py.rc.initialize`` tells whether the import starts MPI. The module is found and loaded once, as without the
    hook.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the specification of ``mpi4py.MPI``, with this loader if the import starts MPI.

        Return None for other modules, and if ``mpi4py.MPI`` does not exist. This finder is used once: it removes itself
        from ``sys.meta_path``.

        Args:
            name: the module's full name.
            path: not used: the interface has it.
            target: not used: the interface has it.
        """
        if name != "mpi4py.MPI":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None and sys.modules["mpi4py"].rc.initialize:
            self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Create the module by its own loader."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module by its own loader, which the module names from now on.

        Under a launcher, watch meanwhile that no rank has left.

        Args:
            module: the new module ``mpi4py.MPI``.
        """
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self._loader
        job = detect()
        if job is None:
            self._loader.exec_module(module)
        else:
            with _watch_mpi_start(job, math.inf):
                self._loader.exec_module(module)


def watch_mpi_import() -> None:
    """Watch the program's first import of ``mpi4py.MPI``.

    The job ends if a rank for which this rank waits has left. Do nothing if the module is imported or watched already.
    """
    is_watched = any(isinstance(finder, _MpiImport) for finder in sys.meta_path)
    if "mpi4py.MPI" not in sys.modules and not is_watched:
        sys.meta_path.insert(0, _MpiImport())


def unwatch_mpi_import() -> None:
    """Do not watch an import of ``mpi4py.MPI``, because the caller watches it."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _MpiImport)]


class WatchedProcess:
    """The parent of a watching child process, as the child sees it."""

    def __init__(self, handle: ProcessHandle, marks: int) -> None:
        self._handle, self._marks = handle, marks

    def wait_for_end(self, seconds: float) -> bool:
        """Return True if the process leaves the watched block, ends, or writes a mark.

        Return False if it does none of them within ``seconds``.
        """
        return bool(select.select([self._marks], [], [], seconds)[0])

    def read_marks(self, seconds: float) -> bytes | None:
        """Return the marks that the process writes within ``seconds``, or None if it writes none.

        The marks are empty if the process has ended, or has left the watched block.
        """
        return os.read(self._marks, 64) if self.wait_for_end(seconds) else None

    def end_job(self, text: str, code: int) -> None:
        """Print a text, ask the launcher to end the job, and kill the watched process if it stays.

        Call it in the watching child; it blocks. It returns when the process ends, leaves the watched block or writes a
        mark. After :data:`KILL_SECONDS` without any of them it sends SIGKILL and returns. Only a launcher that speaks
        PMI is asked; another one ends the job when the process is killed. The exit code and the end of the job are
        recorded for a starter on this machine.

        Args:
            text: the line for stderr, without its newline.
            code: the exit code of the job.
        """
        os.write(2, f"{text}\n".encode())
        note_failure(code)
        note_end()
        ask_launcher_to_end(code)
        if not self.wait_for_end(KILL_SECONDS):
            self._handle.send_signal(signal.SIGKILL)

    def request_stacks(self, answer: int) -> str:
        """Return the stacks of the process's threads as text; empty if it writes none.

        The process writes them by ``faulthandler`` when it gets :data:`STACK_SIGNAL`. Wait up to :data:`ANSWER_SECONDS`
        (1) in all. After each read, wait at most a fifth of that for more.

        Args:
            answer: the descriptor from which they are read.
        """
        self._handle.send_signal(STACK_SIGNAL)
        text, end = b"", time.monotonic() + ANSWER_SECONDS
        while select.select([answer], [], [], max(0.0, end - time.monotonic()))[0]:
            chunk = os.read(answer, 1 << 16)
            if not chunk:  # The process has ended: the pipe stays readable, without any bytes.
                break
            text += chunk
            end = min(end, time.monotonic() + ANSWER_SECONDS / 5)
        return text.decode(errors="replace")

    def measure_processor_seconds(self) -> float | None:
        """Return the processor time that the process has used, in seconds.

        Return None if the system does not tell it.
        """
        status = read_status(self._handle.process)
        return None if status is None else status.seconds


def start_beside(work: Callable[[WatchedProcess], None]) -> tuple[int, int]:
    """Fork a child process that runs a function, which watches this process.

    Args:
        work: runs in the child with the watched process and returns None; the child exits with code 0 when it returns
            or raises.

    Returns:
        ``(descriptor, child)``: the end of a pipe into which this process writes marks, single bytes that tell the
        child what this process does, and the child's process number. The work in the child should end when this
        process closes the descriptor (:meth:`WatchedProcess.wait_for_end`).

    Raises:
        OSError: If no process can be started.
    """
    handle, (read_end, write_end) = ProcessHandle(os.getpid()), os.pipe()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which the child does without
            child = os.fork()
        if child == 0:
            os.close(write_end)
            _run_work(work, WatchedProcess(handle, read_end))
    finally:
        handle.close()
        os.close(read_end)
    return write_end, child


@contextmanager
def run_beside(work: Callable[[WatchedProcess], None]) -> Iterator[None]:
    """Run ``work`` in a child process during the block, and wait for its end after it.

    Args:
        work: as in :func:`start_beside`. It must end when the watched process leaves the block.

    Yields:
        None, once.
    """
    write_end, child = start_beside(work)
    try:
        yield
    finally:
        os.close(write_end)
        with suppress(ChildProcessError):
            os.waitpid(child, 0)


def _run_work(work: Callable[[WatchedProcess], None], watched: WatchedProcess) -> NoReturn:
    """Run the work in the child, and exit with code 0, also after an error.

    SIGINT and SIGTERM end the child.

    Args:
        work: the function, which returns None.
        watched: its argument, the parent of this process.
    """
    try:
        for number in (signal.SIGINT, signal.SIGTERM):  # the watched process handles these signals
            signal.signal(number, signal.SIG_DFL)
        work(watched)
    finally:
        os._exit(0)


def _watch_start(watched: WatchedProcess, job: Launched, deadline: float) -> None:
    """End the job if ranks have left before MPI started, or do not come until the deadline.

    This runs in the child, which looks at the ranks' processes every :data:`LOOK_SECONDS` (0.5), and returns when MPI
    has started.

    - A rank has left if it has been without a process for more than :data:`GONE_SECONDS` (3). The seconds start anew
      when the set of these ranks changes.
    - The lowest rank that still waits ends the job. The other ranks do so :data:`LATER_SECONDS` (2) later, if the job
      still runs.
    - If there is a deadline, the lowest rank also prints every :data:`SIGNS` (10) seconds which ranks have not come
      yet.

    Args:
        watched: the rank, which starts MPI.
        job: the job, as the launcher describes it.
        deadline: the seconds from the start of the wait after which the job ends even if no rank has left; infinity for
            no deadline, and no lines about ranks that have not come yet.
    """
    start, lines_printed, gone_seconds, gone_ranks = time.monotonic(), 0, 0.0, list[int]()
    while not watched.wait_for_end(LOOK_SECONDS):
        waited, before = time.monotonic() - start, gone_ranks
        gone_ranks, absent_ranks = _find_missing_ranks(job)
        gone_seconds = gone_seconds + LOOK_SECONDS if gone_ranks and gone_ranks == before else 0.0
        is_first = job.rank == min({*range(job.size)} - {*gone_ranks, *absent_ranks}, default=job.rank)
        later = 0.0 if is_first else LATER_SECONDS
        line = f"rank {job.rank} of {job.size} waits where MPI starts, for {waited:.0f} s:"
        names = name_ranks(absent_ranks) if absent_ranks else "other ranks"
        if gone_seconds > GONE_SECONDS + later:
            watched.end_job(
                f"{line} {name_ranks(gone_ranks)} left the program before that, the job ends", CODE
            )
        elif waited > deadline + later:
            watched.end_job(f"{line} {names} did not come, the job ends", CODE)
        elif waited > (lines_printed + 1) * SIGNS and is_first and not math.isinf(deadline):
            lines_printed += 1
            os.write(2, f"{line} {names} did not come yet\n".encode())


def read_deadline() -> float:
    """Return the seconds of the setting ``SPMDSIM_DEADLINE``.

    Return the setting's default if its text is not valid.
    """
    with suppress(InputError):
        return settings.DEADLINE.read()
    return settings.DEADLINE.default


def _find_missing_ranks(job: Launched) -> tuple[list[int], list[int]]:
    """Find ranks that have left the program, and ranks that have not come to MPI's start.

    A rank has come if one of its processes has loaded MPI, or if the system refuses to tell that.

    Args:
        job: the job, as the launcher describes it.

    Returns:
        The ranks without a process, and the ranks whose processes have not loaded MPI; both sorted. Both lists are
        empty if this process does not see all ranks: on other machines, in containers, without ``/proc``.
    """
    processes = _list_rank_processes()
    if job.local_size < job.size or job.rank not in processes:
        return [], []
    gone_ranks = [rank for rank in range(job.size) if rank not in processes]
    absent_ranks = [rank for rank in sorted(processes) if not any(map(_may_have_loaded_mpi, processes[rank]))]
    return gone_ranks, absent_ranks


def _list_rank_processes() -> dict[int, list[int]]:
    """Return the numbers of the processes of each rank of this job on this machine.

    For example, ``{0: [4711], 1: [4712, 4720]}``. Only processes below this rank's launcher count, and none that has
    ended. A rank is read from the environment that the launcher gave the process. Ranks without a process are left
    out. The dict is empty if the launcher is in another container, or without ``/proc``.
    """
    parents: dict[int, int] = {}
    ranks: dict[int, int] = {}
    for process in list_processes():
        status = read_status(process)
        job = detect(_read_environment(process)) if status and status.state not in "ZX" else None
        if status and job is not None:
            parents[process], ranks[process] = status.parent, job.rank
    launcher = _find_outer_ancestor(os.getpid(), parents)
    processes: dict[int, list[int]] = {}
    if launcher <= 1:  # the launcher, and with it the other ranks, are in another container
        return processes
    for number, rank in ranks.items():
        if _find_outer_ancestor(number, parents) == launcher:
            processes.setdefault(rank, []).append(number)
    return processes


def _read_environment(process: int) -> dict[str, str]:
    """Return the environment with which a process was started; {} if the system refuses it."""
    with suppress(OSError):
        text = Path(f"/proc/{process}/environ").read_bytes().decode(errors="replace")
        return dict(line.split("=", 1) for line in text.split("\0") if "=" in line)
    return {}


def _find_outer_ancestor(process: int, parents: Mapping[int, int]) -> int:
    """Return the nearest ancestor of a process that belongs to no rank."""
    while process in parents:
        process = parents[process]
    return process


def _may_have_loaded_mpi(process: int) -> bool:
    """Return True if a process has loaded ``mpi4py.MPI``, or if the system refuses to tell it."""
    files = list_mapped_files(process)
    return files is None or any("/mpi4py/MPI." in file for file in files)


def end_before_mpi(code: int) -> None:
    """End the job if this rank fails before it starts MPI; else return at once.

    Return at once also if the process is in no job, or if it has a supervisor, which ends the job. Without a supervisor
    the job could wait for ever: the other ranks wait in MPI's start, and a launcher that speaks PMI does not end the
    job for a rank that fails before MPI's start. So wait, print a line, and ask the launcher to end the job. The
    function returns; the caller still has to exit.

    The wait is 1 s plus 0.3 s times this rank's number, but at most 2.8 s in total. If all ranks fail, the lowest one
    prints its line, and the job ends before the next one prints.

    Args:
        code: the exit code of this rank; 0 if it does not fail.
    """
    job = detect()
    if not code or job is None or has_started_mpi() or find_job_folder() is not None:
        return
    # A rank waits longer than the one before takes to end the job, so that one of them prints if all fail.
    time.sleep(ALONE_SECONDS + APART_SECONDS * min(job.rank, 6))
    write_line(f"rank {job.rank} of {job.size} {BEFORE_MPI} with code {code}, the job ends")
    ask_launcher_to_end(code)


def describe_exit_in_start(waiting_ranks: Sequence[int]) -> str:
    """Return the words for a rank that left while other ranks wait in MPI's start.

    >>> describe_exit_in_start([0, 2])
    'left the program before it started MPI, where ranks 0, 2 wait for it'
    """
    wait = "waits" if len(waiting_ranks) == 1 else "wait"
    return f"left the program before it started MPI, where {name_ranks(waiting_ranks)} {wait} for it"


# -- the shutdown of the interpreter -----------------------------------------------------------------------

_marks: list[int] = []


class StackFrame(NamedTuple):
    """A place in a stack."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.function} at {os.path.basename(self.file)}:{self.line}"


def watch_shutdown(rank: int, size: int, seconds: float) -> None:
    """Start a child process that ends the job if this process's shutdown blocks for too long.

    After ``seconds`` the child gets the stacks of all threads by a signal, and looks for the line that blocks.

    - A line of the user's code or of a non-daemon thread blocks, or a function without lines of Python that uses no
      processor time: the child prints the rank and the place, and ends the job with code 2.
    - Otherwise the clock starts anew: the process waits for other ranks (:func:`waiting_for_ranks`), does not answer,
      or computes in a function without lines of Python, such as the interpreter's clearing of many objects.

    As a side effect, STACK_SIGNAL is ignored, and ``faulthandler`` writes to a pipe on it.

    Nothing is watched if the platform has no ``fork`` or no ``faulthandler.register``, if ``seconds`` is infinite, or
    if no process can be started.

    Args:
        rank: the rank of this process, for the message.
        size: the number of ranks, for the message.
        seconds: the deadline (``SPMDSIM_DEADLINE``).
    """
    if not hasattr(os, "fork") or not hasattr(faulthandler, "register") or math.isinf(seconds):
        return
    main = threading.main_thread().ident or 0
    others = {t.ident or 0: t.name for t in threading.enumerate() if t.ident != main and not t.daemon}
    read_end, write_end = os.pipe()
    signal.signal(STACK_SIGNAL, signal.SIG_IGN)  # what holds again when the interpreter is gone
    faulthandler.register(STACK_SIGNAL, file=write_end, all_threads=True)

    def watch(watched: WatchedProcess) -> None:
        os.close(write_end)
        _watch_for_block(
            watched,
            seconds,
            lambda: find_blocking_line(watched.request_stacks(read_end), main, others),
            f"rank {rank} of {size}",
        )

    with suppress(OSError):  # no memory for a process
        _marks[:] = start_beside(watch)[:1]
    os.close(read_end)


def _watch_for_block(
    watched: WatchedProcess, seconds: float, find_line: Callable[[], str], name: str
) -> None:
    """Watch a process until it ends, and end the job if it blocks; runs in the child.

    Every mark of the process starts the clock anew. When the clock reaches ``seconds``, there are two cases:

    - ``find_line`` names a line of the user's code; or the process is in a function without lines of Python, and has
      used no processor time since the last look: it blocks. Print the line, end the job, and return.
    - Otherwise start the clock anew.

    While the process waits for other ranks (its last mark says so), the clock has no effect.

    Args:
        watched: the process.
        seconds: how long it may write no mark.
        find_line: returns the words of :func:`find_blocking_line` for the process now.
        name: the rank, for the message.
    """
    begin, is_waiting = time.monotonic(), False
    used = watched.measure_processor_seconds()
    while True:
        marks = watched.read_marks(max(0.1, begin + seconds - time.monotonic()))
        if marks == b"":
            return
        if marks is not None:
            begin, is_waiting = time.monotonic(), marks.endswith(WAITS)
        elif not is_waiting and time.monotonic() >= begin + seconds:
            line = find_line()
            before, used = used, watched.measure_processor_seconds()
            if line and (line != NO_LINES or before == used):
                problem = f"{name} has not ended {seconds:g} s after its program: {line} blocks"
                watched.end_job(f"{problem}, the job ends (SPMDSIM_DEADLINE allows more)", CODE)
                return
            begin = time.monotonic()  # it waits where MPI ends, or is stopped: other ranks see that


@contextmanager
def waiting_for_ranks() -> Iterator[None]:
    """Stop the clock of :func:`watch_shutdown` during the block, in which this rank waits.

    It restarts at the end, also after an error. Without such a watch, nothing happens.

    Yields:
        None, once.
    """
    _write_mark(WAITS)
    try:
        yield
    finally:
        _write_mark(GOES_ON)


def _write_mark(mark: bytes) -> None:
    """Write a mark for the child of :func:`watch_shutdown`, if it runs."""
    with suppress(OSError):
        for number in _marks:
            os.write(number, mark)


def find_blocking_line(stacks: str, main: int, others: dict[int, str]) -> str:
    """Return words for the line of the user's code in which a process's shutdown blocks.

    The words are:

    - "" if the main thread is not among the stacks, or if this package waits in it;
    - :data:`NO_LINES` if the main thread runs no line of Python;
    - "thread T, f at a.py:3," if the main thread waits for other threads: the first of them that runs; "" if none runs;
    - otherwise, such as "__del__ at a.py:3", the innermost frame of the user's code in the main thread, or the
      innermost frame of all if none is the user's.

    Args:
        stacks: as ``faulthandler`` writes them, the innermost frame first.
        main: the number of the main thread.
        others: the names of the threads that are waited for, by number.

    >>> lines = 'Current thread 0x1 (most recent call first):', '  File "a.py", line 3 in __del__'
    >>> find_blocking_line(chr(10).join(lines), 1, {})
    '__del__ at a.py:3'
    """
    frames: dict[int, list[StackFrame]] = {}
    thread_frames: list[StackFrame] = []
    for line in stacks.splitlines():
        if thread := _THREAD.search(line):
            thread_frames = frames.setdefault(int(thread[1], 16), [])
        elif frame := _FRAME.match(line):
            thread_frames.append(StackFrame(frame[1], int(frame[2]), frame[3]))
    stack = frames.get(main)
    if stack is None:
        return ""
    if not stack:
        return NO_LINES
    if any(frame.function == "_shutdown" and frame.file == threading.__file__ for frame in stack):
        blocked = [(name, frames[number]) for number, name in others.items() if frames.get(number)]
        return f"thread {blocked[0][0]}, {_find_users_frame(blocked[0][1])}," if blocked else ""
    return "" if stack[0].file.startswith(PACKAGE) else str(_find_users_frame(stack))


def _find_users_frame(stack: list[StackFrame]) -> StackFrame:
    """Return the innermost frame of the user's code, or the innermost frame of all."""
    return next((frame for frame in stack if is_users_file(frame.file)), stack[0])
