"""What MPI libraries leave on a machine when a job ends badly: memory that processes share, and launchers' files.

Left where they are, segments take memory, and Open MPI does not start a launcher that happens to get the process number
of one whose files are there.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

from spmdsim.shutdown.processes import list_mapped_files, list_processes

SHARED = Path("/dev/shm")

#: How the memory is called that MPICH's ranks share, and Open MPI's.
MPICH_SEGMENTS, OPEN_MPI_SEGMENTS = "/dev/shm/mpich_shm_", "/dev/shm/sm_segment."
#: How the names of such files begin: MPICH's, and Open MPI's.
OURS = ("mpich_shm_", "sm_segment.", "osc_sm.", "vader_segment.")
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
        The segments that remain: a process uses them, or they are so young that their job may not use them yet.
    """
    segments = {
        path: born for path in _list_segments() if (born := _read_birth(path)) is not None and born >= since
    }
    if not segments:
        return []
    used, now = list_used_segments(), time.time()
    left = [path for path, born in segments.items() if path.name in used or now - born < YOUNG]
    for path in segments.keys() - set(left):
        with suppress(OSError):
            path.unlink()
    return left


def remove_session(launcher: int) -> None:
    """Remove the files of a launcher that is gone, by its process number."""
    for path in _list_sessions(str(launcher)):
        remove_path(path)


def find_leftovers() -> list[Path]:
    """Return what this user's ended jobs left: segments that no process has mapped, folders of launchers that do not run."""
    used, now = list_used_segments(), time.time()
    births = {path: _read_birth(path) for path in _list_segments()}
    segments = [
        path for path, born in births.items() if born and path.name not in used and now - born > SETTLED
    ]
    sessions = [
        path
        for path in _list_sessions("*")
        if _read_birth(path) and not Path(f"/proc/{_parse_launcher(path)}").exists()
    ]
    return sorted(segments + sessions) if Path("/proc").is_dir() else []


def remove_path(path: Path) -> None:
    """Remove a file or folder, unless somebody else did."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        path.unlink()


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


def _list_segments() -> list[Path]:
    with suppress(OSError):  # no such system
        return [path for path in SHARED.iterdir() if path.name.startswith(OURS)]
    return []


def _read_birth(path: Path) -> float | None:
    with suppress(OSError):
        status = path.stat()
        return status.st_ctime if status.st_uid == os.getuid() else None
    return None


def list_used_segments() -> set[str]:
    """Return the names of the shared files that processes have mapped."""
    paths = [path for process in list_processes() for path in list_mapped_files(process) or ()]
    return {os.path.basename(path) for path in paths if path.startswith(f"{SHARED}/")}
