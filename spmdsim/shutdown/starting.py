"""MPI's start, watched from a process beside: ranks wait for each other there, and nothing else of Python runs.

A rank that leaves the program before it has started MPI, or never comes so far, would be waited for without end and
without a word.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from spmdsim import settings
from spmdsim.errors import InputError
from spmdsim.launcher import Launched, detect
from spmdsim.shutdown.notes import note_end, note_failure
from spmdsim.shutdown.processes import list_mapped_files, list_processes, read_status
from spmdsim.shutdown.stop import ask_launcher_to_end
from spmdsim.sides import name_ranks

#: Seconds that a rank waits at least, whatever ``SPMDSIM_DEADLINE`` says of calls; between two signs of life; until a
#: rank without a process is believed to have left; and between two looks.
DEADLINE, SIGNS, SURE, LOOK = 60.0, 10.0, 3.0, 0.5
#: The exit code of a job that ends so.
CODE = 2
#: How the memory is called that MPICH's ranks share, and Open MPI's.
SEGMENTS = "/dev/shm/mpich_shm_", "/dev/shm/sm_segment."


def start_mpi() -> None:
    """Start MPI, if it was not started yet, so that no rank waits in there for one that cannot come."""
    job = detect()
    if job is None or job.size == 1 or "mpi4py.MPI" in sys.modules:
        import mpi4py.MPI
    else:
        deadline = max(DEADLINE, asked_deadline())  # read here: the other process would repeat a warning
        with beside(lambda: _watch(job, deadline)):
            import mpi4py.MPI  # noqa: F401
    if job is None:
        unlink_segments(SEGMENTS[1])


def unlink_segments(name: str = SEGMENTS[0]) -> None:
    """Remove the names of the memory that this process shares with other ranks: all have it, and it goes with the last one.

    MPICH's when all ranks have started MPI: a job that does not end well leaves it behind. Open MPI's ranks look for theirs
    by name later on, and the launcher removes it; without a launcher nobody else would look, and nobody removes it.
    """
    for path in list_mapped_files(os.getpid()) or ():
        if path.startswith(name):
            with suppress(OSError):  # another rank was quicker
                os.unlink(path)


def start_beside(work: Callable[[], None]) -> tuple[int, int]:
    """Start some work in a process beside this one; return a descriptor, which ends the work once closed, and the process."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which the child does without
        child = os.fork()
    if child == 0:
        os.close(write)
        _apart(read, work)
    os.close(read)
    return write, child


@contextmanager
def beside(work: Callable[[], None]) -> Iterator[None]:
    """Do some work in a process beside this one, for as long as this one is in the block."""
    write, child = start_beside(work)
    try:
        yield
    finally:
        os.close(write)
        with suppress(ChildProcessError):
            os.waitpid(child, 0)


#: In a process beside: ends when the other one is out of the block, or is no more.
_until = -1


def _apart(read: int, work: Callable[[], None]) -> NoReturn:
    global _until
    _until = read
    try:
        for number in (signal.SIGINT, signal.SIGTERM):  # the other process answers them
            signal.signal(number, signal.SIG_DFL)
        work()
    finally:
        os._exit(0)


def over(seconds: float) -> bool:
    """In a process beside: whether the other one is out of the block within so many seconds."""
    return bool(select.select([_until], [], [], seconds)[0])


def read_marks(seconds: float) -> bytes | None:
    """In a process beside: the bytes that the other one has written to its descriptor; None after so many seconds.

    Nothing but the end of the other process makes them empty.
    """
    return os.read(_until, 64) if over(seconds) else None


def end_the_other(text: str, code: int) -> None:
    """In a process beside: say why, and end the other one and its job."""
    os.write(2, f"{text}\n".encode())
    note_failure(code)
    note_end()
    ask_launcher_to_end(code)
    if not over(1.0):
        os.kill(os.getppid(), signal.SIGKILL)


def _watch(job: Launched, deadline: float) -> None:
    begin, signs, gone, left = time.monotonic(), 0, 0.0, list[int]()
    while not over(LOOK):
        waited = time.monotonic() - begin
        before = left
        left, absent = _missing(job)
        gone = gone + LOOK if left and left == before else 0.0
        later = 0.0 if job.rank == min({*range(job.size)} - {*left, *absent}, default=job.rank) else 2.0
        what = f"rank {job.rank} of {job.size} waits where MPI starts, for {waited:.0f} s:"
        who = name_ranks(absent) if absent else "other ranks"
        if gone > SURE + later:
            end_the_other(f"{what} {name_ranks(left)} left the program before that, the job ends", CODE)
        elif waited > deadline + later:
            end_the_other(f"{what} {who} did not come, the job ends", CODE)
        elif waited > (signs + 1) * SIGNS and not later:
            signs += 1
            os.write(2, f"{what} {who} did not come yet\n".encode())


def asked_deadline() -> float:
    """Return the seconds of the setting ``SPMDSIM_DEADLINE``; its default if the text breaks its rule."""
    with suppress(InputError):
        return settings.DEADLINE.read()
    return settings.DEADLINE.default


def _missing(job: Launched) -> tuple[list[int], list[int]]:
    """Of the ranks, those that have left the program and those that have not come to MPI's start, if all can be seen.

    They cannot where some are on other machines, or where a process sees none but its own: ranks in containers, and
    systems without ``/proc``.
    """
    here = _processes()
    if job.local_size < job.size or job.rank not in here:
        return [], []
    left = [rank for rank in range(job.size) if rank not in here]
    return left, [rank for rank in sorted(here) if not any(map(_has_mpi, here[rank]))]


def awaiting(job: Launched) -> list[int]:
    """The other ranks that have come to MPI's start, if all can be seen: there they wait for this one."""
    here = {} if job.local_size < job.size else _processes()
    return [rank for rank in sorted(here) if rank != job.rank and any(map(_starts_mpi, here[rank]))]


def _processes() -> dict[int, list[int]]:
    """The processes of all ranks that the launcher of this one started on this machine."""
    parents: dict[int, int] = {}
    ranks: dict[int, int] = {}
    for process in list_processes():
        status = read_status(process)
        job = detect(_read_environment(process)) if status and status.state not in "ZX" else None
        if status and job is not None:
            parents[process], ranks[process] = status.parent, job.rank
    launcher = _above(os.getpid(), parents)
    here: dict[int, list[int]] = {}
    if launcher <= 1:  # nobody's child here: the launcher, and with it the other ranks, are elsewhere
        return here
    for number, rank in ranks.items():
        if _above(number, parents) == launcher:
            here.setdefault(rank, []).append(number)
    return here


def _read_environment(process: int) -> dict[str, str]:
    with suppress(OSError):
        text = Path(f"/proc/{process}/environ").read_bytes().decode(errors="replace")
        return dict(line.split("=", 1) for line in text.split("\0") if "=" in line)
    return {}


def _above(process: int, parents: Mapping[int, int]) -> int:
    """The first process on the way up that is no rank's."""
    while process in parents:
        process = parents[process]
    return process


def _has_mpi(process: int) -> bool:
    files = list_mapped_files(process)
    return files is None or any("/mpi4py/MPI." in file for file in files)


def _starts_mpi(process: int) -> bool:
    """Whether MPI is not only loaded: where it starts, it listens for others."""
    with suppress(OSError):
        files = Path(f"/proc/{process}/fd")
        return _has_mpi(process) and any("[eventpoll]" in os.readlink(file) for file in files.iterdir())
    return False
