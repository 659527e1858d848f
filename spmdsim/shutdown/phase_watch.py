"""Two phases of a rank, watched from a child process: the start of MPI and the shutdown of the interpreter.

Ranks wait for each other in both phases, and no thread of Python runs. A rank that never comes, or that stays in a thread, an
``atexit`` handler or a ``__del__``, would keep all others waiting without end and without a word. The main program between
the phases may take as long as it likes.
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
from pathlib import Path
from typing import NamedTuple, NoReturn

from spmdsim import settings
from spmdsim.errors import InputError
from spmdsim.launcher import Launched, detect
from spmdsim.shutdown.exit_notes import job_folder, note_end, note_failure
from spmdsim.shutdown.leftovers import OPEN_MPI_SEGMENTS, unlink_segments
from spmdsim.shutdown.processes import list_mapped_files, list_processes, read_status
from spmdsim.shutdown.stop import BEFORE_MPI, ask_launcher_to_end, exit_now, write
from spmdsim.sides import name_ranks

#: Seconds that a rank waits at least, whatever ``SPMDSIM_DEADLINE`` says of calls; between two signs of life; until a
#: rank without a process is believed to have left; and between two looks.
DEADLINE, SIGNS, SURE, LOOK = 60.0, 10.0, 3.0, 0.5
#: The exit code of a job that ends so.
CODE = 2
#: Given to the other ranks to fail, too, and to say why, before one that fails ends the job by its launcher; and more
#: for each rank, so that one of them comes first.
ALONE_SECONDS, APART_SECONDS = 1.0, 0.1
#: Seconds that a process has to say where it is.
ANSWER_SECONDS = 1.0
#: The place of a process in a function that is not written in Python.
NO_LINES = "a function without lines of Python"
#: Marks of the watched process: it waits for other ranks, or goes on.
WAITS, GOES_ON = b"w", b"g"
#: The signal that has a process write where its threads are.
ASK = getattr(signal, "SIGUSR2", signal.SIGTERM)
PACKAGE = str(Path(__file__).resolve().parent.parent) + os.sep
_THREAD = re.compile(r"hread 0x([0-9a-f]+)")
_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')


def start_mpi() -> None:
    """Start MPI if it is not started yet. A child process ends the job if another rank does not come."""
    job = detect()
    if job is None or job.size == 1 or "mpi4py.MPI" in sys.modules:
        import mpi4py.MPI
    else:
        deadline = max(DEADLINE, read_deadline())  # read here: the other process would repeat a warning
        with run_beside(lambda: _watch_start(job, deadline)):
            import mpi4py.MPI  # noqa: F401
    if job is None:
        unlink_segments(OPEN_MPI_SEGMENTS)


def start_beside(work: Callable[[], None]) -> tuple[int, int]:
    """Start a function in a child process.

    Returns:
        A descriptor and the child's number. The child reads marks from the descriptor (:func:`read_marks`), and its work
        should end when the descriptor is closed (:func:`wait_for_end`).
    """
    read, write_end = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which the child does without
        child = os.fork()
    if child == 0:
        os.close(write_end)
        _run_work(read, work)
    os.close(read)
    return write_end, child


@contextmanager
def run_beside(work: Callable[[], None]) -> Iterator[None]:
    """Run ``work`` in a child process during the block. It has to end soon after :func:`wait_for_end` returns True."""
    write_end, child = start_beside(work)
    try:
        yield
    finally:
        os.close(write_end)
        with suppress(ChildProcessError):
            os.waitpid(child, 0)


#: In the child: the descriptor that ends when the watched process leaves the block or dies.
_until = -1


def _run_work(read: int, work: Callable[[], None]) -> NoReturn:
    global _until
    _until = read
    try:
        for number in (signal.SIGINT, signal.SIGTERM):  # the other process answers them
            signal.signal(number, signal.SIG_DFL)
        work()
    finally:
        os._exit(0)


def wait_for_end(seconds: float) -> bool:
    """Return True if the watched process leaves the block, or writes a mark, within so many seconds. For the child."""
    return bool(select.select([_until], [], [], seconds)[0])


def read_marks(seconds: float) -> bytes | None:
    """Return the marks that the watched process writes, or None after so many seconds. For the child.

    The marks are empty if the watched process has ended.
    """
    return os.read(_until, 64) if wait_for_end(seconds) else None


def end_watched_process(text: str, code: int) -> None:
    """Print ``text`` and ask the launcher to end the job; kill the watched process if it has not ended after a second.

    The child calls this, about its parent.
    """
    os.write(2, f"{text}\n".encode())
    note_failure(code)
    note_end()
    ask_launcher_to_end(code)
    if not wait_for_end(1.0):
        os.kill(os.getppid(), signal.SIGKILL)


def _watch_start(job: Launched, deadline: float) -> None:
    """End the job if ranks left before they started MPI, or do not come until the deadline. For the child."""
    begin, signs, gone, left = time.monotonic(), 0, 0.0, list[int]()
    while not wait_for_end(LOOK):
        waited = time.monotonic() - begin
        before = left
        left, absent = _find_missing_ranks(job)
        gone = gone + LOOK if left and left == before else 0.0
        later = 0.0 if job.rank == min({*range(job.size)} - {*left, *absent}, default=job.rank) else 2.0
        what = f"rank {job.rank} of {job.size} waits where MPI starts, for {waited:.0f} s:"
        who = name_ranks(absent) if absent else "other ranks"
        if gone > SURE + later:
            end_watched_process(f"{what} {name_ranks(left)} left the program before that, the job ends", CODE)
        elif waited > deadline + later:
            end_watched_process(f"{what} {who} did not come, the job ends", CODE)
        elif waited > (signs + 1) * SIGNS and not later:
            signs += 1
            os.write(2, f"{what} {who} did not come yet\n".encode())


def read_deadline() -> float:
    """Return the seconds of the setting ``SPMDSIM_DEADLINE``; its default if the text breaks its rule."""
    with suppress(InputError):
        return settings.DEADLINE.read()
    return settings.DEADLINE.default


def _find_missing_ranks(job: Launched) -> tuple[list[int], list[int]]:
    """Return the ranks that have left the program, and the ranks that have not come to MPI's start.

    Both lists are empty if this process does not see all ranks: on other machines, in containers, without ``/proc``.
    """
    here = _list_rank_processes()
    if job.local_size < job.size or job.rank not in here:
        return [], []
    left = [rank for rank in range(job.size) if rank not in here]
    return left, [rank for rank in sorted(here) if not any(map(_has_loaded_mpi, here[rank]))]


def find_waiting_ranks(job: Launched) -> list[int]:
    """Return the other ranks that seem to wait in MPI's start: they have loaded ``mpi4py.MPI`` and poll for events.

    Return none if this process does not see all ranks.
    """
    here = {} if job.local_size < job.size else _list_rank_processes()
    return [rank for rank in sorted(here) if rank != job.rank and any(map(_is_starting_mpi, here[rank]))]


def _list_rank_processes() -> dict[int, list[int]]:
    """Return the processes of each rank that this rank's launcher started on this machine."""
    parents: dict[int, int] = {}
    ranks: dict[int, int] = {}
    for process in list_processes():
        status = read_status(process)
        job = detect(_read_environment(process)) if status and status.state not in "ZX" else None
        if status and job is not None:
            parents[process], ranks[process] = status.parent, job.rank
    launcher = _find_outer_ancestor(os.getpid(), parents)
    here: dict[int, list[int]] = {}
    if launcher <= 1:  # nobody's child here: the launcher, and with it the other ranks, are elsewhere
        return here
    for number, rank in ranks.items():
        if _find_outer_ancestor(number, parents) == launcher:
            here.setdefault(rank, []).append(number)
    return here


def _read_environment(process: int) -> dict[str, str]:
    with suppress(OSError):
        text = Path(f"/proc/{process}/environ").read_bytes().decode(errors="replace")
        return dict(line.split("=", 1) for line in text.split("\0") if "=" in line)
    return {}


def _find_outer_ancestor(process: int, parents: Mapping[int, int]) -> int:
    """Return the nearest ancestor of a process that belongs to no rank."""
    while process in parents:
        process = parents[process]
    return process


def _has_loaded_mpi(process: int) -> bool:
    files = list_mapped_files(process)
    return files is None or any("/mpi4py/MPI." in file for file in files)


def _is_starting_mpi(process: int) -> bool:
    """Return True if a process waits in MPI's start: it has loaded MPI and listens for other ranks."""
    with suppress(OSError):
        files = Path(f"/proc/{process}/fd")
        return _has_loaded_mpi(process) and any(
            "[eventpoll]" in os.readlink(file) for file in files.iterdir()
        )
    return False


def end_before_mpi(code: int) -> None:
    """End the job if this rank ends without MPI while other ranks wait in MPI's start.

    A rank with a supervisor leaves that to the supervisor. A launcher that speaks PMI ends no job for such a rank.

    Args:
        code: the exit code of this rank.
    """
    launcher = detect()
    if launcher is None or "mpi4py.MPI" in sys.modules or job_folder() is not None:
        return
    if not code:
        if launcher.size > 1 and (waiting := find_waiting_ranks(launcher)):
            write(f"rank {launcher.rank} of {launcher.size} {describe_early_exit(waiting)}, the job ends")
            ask_launcher_to_end(CODE)
            exit_now(CODE)
        return
    time.sleep(ALONE_SECONDS + APART_SECONDS * min(launcher.rank, 20))  # where all fail, one says so
    write(f"rank {launcher.rank} of {launcher.size} {BEFORE_MPI} with code {code}, the job ends")
    ask_launcher_to_end(code)


def describe_early_exit(waiting: Sequence[int]) -> str:
    """Return the words for a rank that left while others wait in MPI's start.

    >>> describe_early_exit([0, 2])
    'left the program before it started MPI, where ranks 0, 2 wait for it'
    """
    return f"left the program before it started MPI, where {name_ranks(waiting)} wait{'s' * (len(waiting) == 1)} for it"


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

    After ``seconds`` the child asks for the stacks of all threads by a signal. If the user's code or a thread blocks, it
    prints the rank and the place, and ends the job with code 2. The clock restarts if the process waits for other ranks
    (:func:`waiting_for_ranks`), does not answer, or works in a function without lines of Python, such as the interpreter's
    own clearing of many objects. Nothing is watched if the platform has no ``fork``, if ``seconds`` is infinite, or if no
    process can be started.

    Args:
        rank: the rank of this process, for the message.
        size: the number of ranks, for the message.
        seconds: the deadline (``SPMDSIM_DEADLINE``).
    """
    if not hasattr(os, "fork") or not hasattr(faulthandler, "register") or math.isinf(seconds):
        return
    main = threading.main_thread().ident or 0
    others = {t.ident or 0: t.name for t in threading.enumerate() if t.ident != main and not t.daemon}
    process, (read, write_end) = os.getpid(), os.pipe()
    signal.signal(ASK, signal.SIG_IGN)  # what holds again when the interpreter is gone
    faulthandler.register(ASK, file=write_end, all_threads=True)

    def watch() -> None:
        os.close(write_end)
        begin, waits = time.monotonic(), False
        spent = _measure_used(process)
        while True:
            marks = read_marks(max(0.1, begin + seconds - time.monotonic()))
            if marks == b"":
                return
            if marks is not None:
                begin, waits = time.monotonic(), marks.endswith(WAITS)
            elif not waits and time.monotonic() >= begin + seconds:
                place = find_blocking_line(_request_stacks(process, read), main, others)
                before, spent = spent, _measure_used(process)
                if place and (place != NO_LINES or before == spent):
                    who = f"rank {rank} of {size} has not ended {seconds:g} s after its program"
                    end_watched_process(
                        f"{who}: {place} blocks, the job ends (SPMDSIM_DEADLINE allows more)", CODE
                    )
                    return
                begin = time.monotonic()  # it waits where MPI ends, or is stopped: others see that

    with suppress(OSError):  # no memory for a process
        _marks[:] = start_beside(watch)[:1]
    os.close(read)


@contextmanager
def waiting_for_ranks() -> Iterator[None]:
    """Let the shutdown take as long as it likes in the block, where this rank waits for others."""
    _write_mark(WAITS)
    try:
        yield
    finally:
        _write_mark(GOES_ON)


def _write_mark(mark: bytes) -> None:
    with suppress(OSError):
        for number in _marks:
            os.write(number, mark)


def _request_stacks(process: int, answer: int) -> str:
    """Return the stacks of a process, as ``faulthandler`` writes them; empty if it does not answer."""
    os.kill(process, ASK)
    text, end = b"", time.monotonic() + ANSWER_SECONDS
    while select.select([answer], [], [], max(0.0, end - time.monotonic()))[0]:
        text += os.read(answer, 1 << 16)
        end = min(end, time.monotonic() + ANSWER_SECONDS / 5)
    return text.decode(errors="replace")


def _measure_used(process: int) -> float | None:
    status = read_status(process)
    return None if status is None else status.seconds


def find_blocking_line(stacks: str, main: int, others: dict[int, str]) -> str:
    """Return the line that holds up a process's shutdown; empty if this package waits in it, or main is absent.

    Args:
        stacks: as ``faulthandler`` writes them, the innermost frame first.
        main: the number of the main thread.
        others: the names of the threads that are waited for, by number.

    >>> lines = 'Current thread 0x1 (most recent call first):', '  File "a.py", line 3 in __del__'
    >>> find_blocking_line(chr(10).join(lines), 1, {})
    '__del__ at a.py:3'
    """
    frames: dict[int, list[StackFrame]] = {}
    here: list[StackFrame] = []
    for line in stacks.splitlines():
        if thread := _THREAD.search(line):
            here = frames.setdefault(int(thread[1], 16), [])
        elif frame := _FRAME.match(line):
            here.append(StackFrame(frame[1], int(frame[2]), frame[3]))
    stack = frames.get(main)
    if stack is None:
        return ""
    if not stack:
        return NO_LINES
    if any(frame.function == "_shutdown" and frame.file == threading.__file__ for frame in stack):
        blocked = [(name, frames[number]) for number, name in others.items() if frames.get(number)]
        return f"thread {blocked[0][0]}, {_users_frame(blocked[0][1])}," if blocked else ""
    return "" if stack[0].file.startswith(PACKAGE) else str(_users_frame(stack))


def _users_frame(stack: list[StackFrame]) -> StackFrame:
    """Return the innermost frame of the user's code, or the innermost frame of all."""
    installed = (os.path.dirname(os.__file__) + os.sep, sys.prefix + os.sep + "lib", PACKAGE, "<frozen")
    return next((frame for frame in stack if not frame.file.startswith(installed)), stack[0])
