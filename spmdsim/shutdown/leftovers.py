"""What MPI libraries leave on a machine when a job ends badly: memory that processes share, and launchers' files.

Left where they are, segments take memory, and Open MPI does not start a launcher that happens to get the process number
of one whose files are there.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

from spmdsim.shutdown.processes import list_mapped_files

SHARED = Path("/dev/shm")

#: How the memory is called that MPICH's ranks share, and Open MPI's.
MPICH_SEGMENTS, OPEN_MPI_SEGMENTS = "/dev/shm/mpich_shm_", "/dev/shm/sm_segment."
#: How the names of such files begin: MPICH's, and Open MPI's.
SEGMENT_NAMES = ("mpich_shm_", "sm_segment.", "osc_sm.", "vader_segment.")
#: Seconds after which a segment that no process has mapped is nobody's; before, the job that made it may just do so.
YOUNG = 0.25
#: Seconds after which a segment that no process has mapped is nobody's, whoever made it: ranks may take long to start.
SETTLED = 600.0


def unlink_segments(name: str = MPICH_SEGMENTS) -> None:
    """Remove the names of the memory that this process shares with other ranks. The system frees it after the last rank.

    Remove MPICH's names when all ranks have started MPI: MPICH leaves them behind if the job fails. Remove Open MPI's names
    only without a launcher: its ranks look for memory by name later, and its launcher removes the names.

    Args:
        name: what the paths begin with.
    """
    for path in list_mapped_files(os.getpid()) or ():
        if path.startswith(name):
            with suppress(OSError):  # another rank was quicker
                os.unlink(path)


def remove_segments(since: float) -> list[Path]:
    """Remove this user's unused segments that are not older than a job that has ended.

    Args:
        since: when the job began, by the file system's clock.

    Returns:
        The segments that remain: a process uses them or may use them, or they are so young that their job may not use
        them yet.
    """
    remaining, now = [], time.time()
    for path, birth in _list_segments().items():
        if birth >= since:
            if now - birth < YOUNG or may_be_used(path):
                remaining.append(path)
            else:
                remove_path(path)
    return remaining


def remove_session(launcher: int) -> None:
    """Remove the files of a launcher that is gone, by its process number."""
    for path in _list_sessions(str(launcher)):
        remove_path(path)


def find_leftovers() -> list[Path]:
    """Return what this user's ended jobs left: segments that no process has mapped, folders of launchers that do not run."""
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
    """Remove a file or folder. Return True if it does not exist any more."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        path.unlink()
    return not path.exists()


def _list_sessions(launcher: str) -> list[Path]:
    """Return the folders of launchers, which Open MPI 5 and its predecessors name by their process number."""
    import tempfile  # each rank's supervisor loads this file, and none needs that

    names = (f"ompi.{launcher}", f"prte*.{launcher}.{os.getuid()}") if hasattr(os, "getuid") else ()
    folders = {path for name in names for path in Path(tempfile.gettempdir()).glob(name)}
    return [path for path in folders if _parse_launcher(path)]


def _parse_launcher(session: Path) -> int | None:
    """Return the process number in a folder's name; None for other folders, such as Open MPI's for all jobs of a user.

    >>> _parse_launcher(Path("ompi.2231")), _parse_launcher(Path("prterun.n1.2231.0")), _parse_launcher(Path("ompi.n1.0"))
    (2231, 2231, None)
    """
    kind, *words = session.name.split(".")
    numbers = words if kind == "ompi" else words[-2:-1]
    return int(numbers[0]) if len(numbers) == 1 and numbers[0].isdecimal() else None


def _list_segments() -> dict[Path, float]:
    """Return this user's segments of shared memory, and when each was made."""
    births: dict[Path, float] = {}
    with suppress(OSError):  # a system without this folder
        for path in SHARED.iterdir():
            if path.name.startswith(SEGMENT_NAMES) and (birth := _read_birth(path)) is not None:
                births[path] = birth
    return births


def _read_birth(path: Path) -> float | None:
    """Return when a file was made, or None if it is another user's or does not exist any more."""
    with suppress(OSError):
        status = path.stat()
        return status.st_ctime if status.st_uid == os.getuid() else None
    return None


def may_be_used(path: Path) -> bool:
    """Return True if another process has opened or mapped a file, or if the system does not tell it.

    Linux grants a lease for writing only if nothing else refers to the file. The lists of files of all processes would not
    do: the system refuses those of some processes, and has none of processes in other containers.
    """
    try:
        import fcntl

        with path.open("rb+") as file:
            fcntl.fcntl(
                file, fcntl.F_SETSIG, signal.SIGURG
            )  # if another process opens the file now; it is ignored
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        return False
    except (ImportError, AttributeError, OSError):  # another system; or the lease is refused
        return True
