"""Processes of this machine: read their states, signal them, end them with their descendants, remove the files they leave.

Linux answers by ``/proc`` and ``prctl``. On other systems the lists are empty, and options are not set.

MPI libraries leave shared memory and launchers' files when a job ends badly. Segments take memory. Open MPI does not
start a launcher that happens to get the process number of an earlier one whose files exist.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

PROC = Path("/proc")
SHARED = Path("/dev/shm")
#: The begins of the paths of memory that MPICH's ranks share, and Open MPI's.
MPICH_SEGMENTS, OPEN_MPI_SEGMENTS = "/dev/shm/mpich_shm_", "/dev/shm/sm_segment."
#: The begins of the names of all segments of these libraries.
SEGMENT_NAMES = ("mpich_shm_", "sm_segment.", "osc_sm.", "vader_segment.")
#: Seconds after which an unused segment of an ended job is removed. A rank that makes a segment maps it within this
#: time.
YOUNG = 0.25
#: Seconds after which an unused segment of any job is removed. The ranks of a running job may take long to start.
SETTLED = 600.0
#: The signal that a reaper passes on to its child.
PASSED_SIGNAL = getattr(signal, "SIGXCPU", signal.SIGTERM)

#: The signals that a reaper waits for: an end of its child, a request to end, and the signal that it passes on.
_REAPER_SIGNALS = (getattr(signal, "SIGCHLD", signal.SIGTERM), signal.SIGTERM, PASSED_SIGNAL)

#: Options of Linux's prctl: send a signal when the parent ends; let processes of the same user look into this one; gain
#: no rights; adopt orphans.
SIGNAL_WITH_PARENT, READABLE, NO_NEW_RIGHTS, ADOPT_ORPHANS = 1, 4, 38, 36
_IS_READABLE = 3


class ProcessStatus(NamedTuple):
    """The state of a process (a letter, as ``ps`` shows it), its parent, and the processor time that it used in seconds."""

    state: str
    parent: int
    seconds: float


def read_status(process: int) -> ProcessStatus | None:
    """Return the status of a process, or None if the system does not tell it.

    Return None, too, if the process does not exist, and on systems without ``/proc``.

    Args:
        process: the number of the process.
    """
    try:
        text = (PROC / str(process) / "stat").read_bytes().decode(errors="replace")
        # The program's name, in parentheses, may have spaces and parentheses.
        fields = text.rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        return ProcessStatus(fields[0], int(fields[1]), ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return None


def list_processes() -> list[int]:
    """Return the numbers of all processes."""
    return [int(folder.name) for folder in PROC.glob("[0-9]*")]


def list_children(process: int) -> list[int]:
    """Return the numbers of the children that a process started, from any of its threads.

    Return [] if it started none, or if the process does not exist. Linux keeps a list of children for each thread. If
    the kernel has no such lists, the parent of every process is read instead.

    Args:
        process: the number of the process.
    """
    with suppress(OSError, ValueError):
        # The main thread has the number of the process. Other threads may end between listing and reading.
        texts = [(PROC / f"{process}/task/{process}/children").read_text()]
        for thread in (PROC / f"{process}/task").iterdir():
            if thread.name != str(process):
                with suppress(OSError):
                    texts.append((thread / "children").read_text())
        return [int(number) for text in texts for number in text.split()]
    statuses = {number: read_status(number) for number in list_processes()}
    return [number for number, status in statuses.items() if status and status.parent == process]


def list_mapped_files(process: int) -> list[str] | None:
    """Return the paths of the files that a process has mapped to memory.

    A path occurs once per mapping; " (deleted)" behind it is cut off. Return [] if the process has ended, and None if
    the system refuses the list or has no ``/proc``.

    Args:
        process: the number of the process.
    """
    try:
        lines = (PROC / str(process) / "maps").read_bytes().decode(errors="replace").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return [] if PROC.is_dir() else None
    except OSError:
        return None
    fields = [line.split(maxsplit=5) for line in lines]
    return [line[5].removesuffix(" (deleted)") for line in fields if len(line) == 6 and line[5][0] == "/"]


def set_process_option(option: int, value: int) -> None:
    """Call Linux's prctl with one argument for this process; do nothing where it fails."""
    with suppress(Exception):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


@contextmanager
def make_unreadable() -> Iterator[None]:
    """Forbid other processes of this user to read or change this one, inside of the block.

    The setting before comes back at the end, also after an error. Only Linux can do that; elsewhere nothing happens.

    Yields:
        None, once.
    """
    before = 1  # the system's default: readable
    with suppress(Exception):
        before = max(ctypes.CDLL(None).prctl(_IS_READABLE, 0, 0, 0, 0), 0)
    set_process_option(READABLE, 0)
    try:
        yield
    finally:
        set_process_option(READABLE, before)


def can_watch_processes() -> bool:
    """Return True if this system has descriptors of processes (pidfd), which tell when one ends.

    Each call opens a descriptor of this process as a test, because old kernels and some containers refuse it at run
    time.
    """
    if not hasattr(os, "pidfd_open"):
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


class ProcessHandle:
    """A process that this process can signal, and no other process that gets its number.

    The system may give the number of an ended process to another one; a descriptor stays with its process. Where the
    kernel refuses descriptors, signals go to the number.

    Attributes:
        process: the number of the process.
        descriptor: the descriptor, which is ready to read when the process has ended; None if the kernel refuses it.
    """

    def __init__(self, process: int) -> None:
        self.process = process
        self.descriptor: int | None = None
        with suppress(OSError, AttributeError):
            self.descriptor = os.pidfd_open(process)

    def send_signal(self, number: int) -> None:
        """Send signal ``number`` to the process.

        Do nothing if the process has ended, or if this process must not signal it.
        """
        with suppress(ProcessLookupError, PermissionError):
            if self.descriptor is not None:
                with suppress(PermissionError):  # a container may refuse this call
                    signal.pidfd_send_signal(self.descriptor, number)
                    return
            os.kill(self.process, number)

    def close(self) -> None:
        """Close the descriptor."""
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None


def close_descriptors(first: int) -> None:
    """Close the descriptors of this process from number ``first`` on.

    Without ``/proc``, which lists them, they stay open.
    """
    with suppress(OSError):
        os.closerange(first, max(map(int, os.listdir("/proc/self/fd"))) + 1)


# -- a process that ends with all of its descendants -------------------------------------------------------


def fork_below_reaper() -> int:
    """Fork a process that ends with all of its descendants.

    Two processes are forked: this process -> reaper -> new process. The reaper waits for the new process, and
    terminates everything below itself when the new process ends, when SIGTERM asks for it, or when this process ends.
    On Linux it also gets the orphans among the descendants (``PR_SET_CHILD_SUBREAPER``); on other systems it
    terminates its child alone. It passes ``PASSED_SIGNAL`` (SIGXCPU) on to the child.

    Returns:
        0 in the new process; in the calling process the reaper's number. The reaper ends as the new process ended: with
        its exit code, or by its signal. SIGTERM ends the reaper and all of its descendants.

    Raises:
        OSError: If no process can be started.
    """
    caller = os.getpid()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _REAPER_SIGNALS)
    reaper = os.fork()
    if reaper:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return reaper
    set_process_option(ADOPT_ORPHANS, 1)
    set_process_option(SIGNAL_WITH_PARENT, signal.SIGTERM)
    if os.getppid() != caller:
        os._exit(1)
    reaper = os.getpid()
    child = os.fork()
    if child:
        try:
            _reap(child)
        finally:  # the reaper must not run the caller's program
            os._exit(1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    set_process_option(SIGNAL_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != reaper:
        os._exit(1)
    return 0


def _reap(child: int) -> NoReturn:
    """Wait, as the reaper, for the child to end; terminate its descendants, and end like it.

    If the child exited with code 3, the reaper exits with code 3; if a signal ended the child, it ends the reaper,
    too. All open files are closed first, also stdout and stderr, so that readers of pipes do not wait for the reaper.
    SIGINT is ignored.

    The signals that the reaper waits for are blocked. A handler could run just before a call of ``waitpid``, which would
    then wait without end.

    Args:
        child: the number of the child's process.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(
        _REAPER_SIGNALS[0], lambda *_: None
    )  # some systems drop a blocked signal that has no handler
    close_descriptors(0)
    handle = ProcessHandle(child)
    ended = status = 0
    while not ended:
        number = signal.sigwait(_REAPER_SIGNALS)
        if number == signal.SIGTERM:
            terminate_descendants(handle)
            os._exit(1)
        if number == PASSED_SIGNAL:
            handle.send_signal(PASSED_SIGNAL)
        ended, status = os.waitpid(child, os.WNOHANG)
    terminate_descendants()
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        with suppress(OSError, ValueError):
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _REAPER_SIGNALS)
        os.kill(os.getpid(), -code)
    os._exit(max(code, 0))


def end_reaper(reaper: ProcessHandle) -> int:
    """End a reaper with its descendants, and wait for its end.

    Returns:
        Its exit code, or minus the signal that ended it.
    """
    reaper.send_signal(signal.SIGTERM)
    reaper.send_signal(signal.SIGCONT)  # the user's code may have stopped it
    return os.waitstatus_to_exitcode(os.waitpid(reaper.process, 0)[1])


def terminate_descendants(*children: ProcessHandle) -> None:
    """Kill all descendants of this process, and return when all have ended.

    It kills the children, then waits for one to end, until none is left. If this process is a reaper, it adopts the
    children of those that die (:func:`fork_below_reaper`), so they are killed in the next round.

    Args:
        *children: known children that are killed even if the system does not list them.
    """
    while True:
        for handle in children:
            handle.send_signal(signal.SIGKILL)
        # Only this function waits for the children, so their numbers stay their own.
        for number in list_children(os.getpid()):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(number, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


# -- files that processes leave ---------------------------------------------------------------------------


def unlink_segments(name: str = MPICH_SEGMENTS) -> None:
    """Remove the names of the memory that this process shares with other ranks.

    The memory itself stays until its last rank ends. When a caller may remove the names depends on the library:

    - MPICH: as soon as all ranks have started MPI. MPICH leaves the names behind if the job fails.
    - Open MPI: only in a program without a launcher. With one, ranks look for memory by name later, and the launcher
      removes the names.

    Args:
        name: the begin of the paths of the memory.
    """
    for path in list_mapped_files(os.getpid()) or ():
        if path.startswith(name):
            with suppress(OSError):  # another rank was quicker
                os.unlink(path)


def remove_segments(since: float) -> list[Path]:
    """Remove the unused segments of shared memory that a job of this user has left.

    Segments that were made after ``since`` count as the job's.

    Args:
        since: when the job began, by the file system's clock, in seconds since 1970.

    Returns:
        The segments that remain, in no order: a process uses them or may use them, or they are younger than
        :data:`YOUNG` (0.25) seconds, so that their job may not use them yet.
    """
    remaining, now = [], time.time()
    for path, birth in _list_segments().items():
        if birth >= since:
            if now - birth < YOUNG or may_be_used(path):
                remaining.append(path)
            else:
                remove_path(path)
    return remaining


def kill_session(leader: int, seconds: float) -> None:
    """Kill the processes of a session that its leader has left behind, after they had some seconds to end.

    Launchers put each ``ssh`` into a process group of its own; it waits without end for a host that is not reachable.

    Args:
        leader: the process number of the leader; it is killed, too, if it still runs.
        seconds: the longest wait.
    """
    end = time.monotonic() + seconds
    while processes := _list_session_processes(leader):
        if time.monotonic() > end:
            for process in processes:
                with suppress(OSError):
                    os.kill(process, signal.SIGKILL)
            return
        time.sleep(0.05)


def _list_session_processes(leader: int) -> list[int]:
    """Return the numbers of the processes that have not ended in the session of process number ``leader``."""
    processes = []
    for process in list_processes():
        with suppress(OSError):
            status = read_status(process)
            if os.getsid(process) == leader and status is not None and status.state not in "ZX":
                processes.append(process)
    return processes


def remove_session(launcher: int) -> None:
    """Remove the files of a launcher that is gone, by its process number."""
    for path in _list_sessions(str(launcher)):
        remove_path(path)


def find_leftovers() -> list[Path]:
    """Return the paths that this user's ended jobs have left, sorted.

    - Segments of shared memory that are unused and older than :data:`SETTLED` (600) seconds.
    - Folders for temporary files of launchers of Open MPI that do not run.

    Without ``/proc`` there are none.
    """
    now = time.time()
    segments = [
        path for path, birth in _list_segments().items() if now - birth > SETTLED and not may_be_used(path)
    ]
    sessions = [
        path
        for path in _list_sessions("*")
        if _read_birth(path) and not Path(f"/proc/{_parse_launcher(path)}").exists()
    ]
    return sorted(segments + sessions) if Path("/proc").is_dir() else []


def remove_path(path: Path) -> bool:
    """Remove the file or folder ``path``; return True if it does not exist any more.

    A folder is removed with its contents. Of a link, only the link is removed. Errors are not raised; what
    cannot be removed stays.
    """
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):  # another process may have removed it
        path.unlink()
    return not path.exists()


def _list_sessions(launcher: str) -> list[Path]:
    """Return the folders of a launcher in the folder for temporary files.

    Open MPI 5 and its predecessors name them by the launcher's process number. Folders of several jobs are left out.

    Args:
        launcher: the process number as text; "*" for all launchers.
    """
    import tempfile  # each rank's supervisor loads this file, and none needs that

    names = (f"ompi.{launcher}", f"prte*.{launcher}.{os.getuid()}") if hasattr(os, "getuid") else ()
    folders = {path for name in names for path in Path(tempfile.gettempdir()).glob(name)}
    return [path for path in folders if _parse_launcher(path)]


def _parse_launcher(session: Path) -> int | None:
    """Return the process number of the launcher in a folder's name.

    Return None if the folder belongs to several jobs.

    >>> _parse_launcher(Path("ompi.2231")), _parse_launcher(Path("prterun.n1.2231.0")), _parse_launcher(Path("ompi.n1.0"))
    (2231, 2231, None)
    """
    kind, *words = session.name.split(".")
    numbers = words if kind == "ompi" else words[-2:-1]
    return int(numbers[0]) if len(numbers) == 1 and numbers[0].isdecimal() else None


def _list_segments() -> dict[Path, float]:
    """Return this user's segments of shared memory, and when each was made.

    The times are seconds since 1970. Only names of MPI libraries (:data:`SEGMENT_NAMES`) count.
    """
    births: dict[Path, float] = {}
    with suppress(OSError):  # a system without this folder
        for path in SHARED.iterdir():
            if path.name.startswith(SEGMENT_NAMES) and (birth := _read_birth(path)) is not None:
                births[path] = birth
    return births


def _read_birth(path: Path) -> float | None:
    """Return when a file was made or last renamed, in seconds since 1970.

    Return None if the file is another user's or does not exist any more.
    """
    with suppress(OSError):
        status = path.stat()
        return status.st_ctime if status.st_uid == os.getuid() else None
    return None


def may_be_used(path: Path) -> bool:
    """Return True if another process has opened or mapped a file, or if that is unknown.

    Linux grants a lease for writing only if no other process refers to the file. The lists of open files of all
    processes would not suffice: the system refuses some of them, and lacks processes in other containers.

    Return True, too, if this process must not write to the file, and on other systems than Linux.

    Args:
        path: the file.
    """
    try:
        import fcntl

        with path.open("rb+") as file:
            # The signal comes if another process opens the file now; it is ignored.
            fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        return False
    except (ImportError, AttributeError, OSError):  # another system; or the lease is refused
        return True
