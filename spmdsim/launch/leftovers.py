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

#: How the names of such files begin: MPICH's, and Open MPI's.
OURS = ("mpich_shm_", "sm_segment.", "osc_sm.", "vader_segment.")
#: Seconds after which a segment that no process has mapped is nobody's; before, the job that made it may just do so.
YOUNG = 0.25
#: Seconds after which a segment that no process has mapped is nobody's, whoever made it: ranks may take long to start.
SETTLED = 600.0


def sweep(since: float) -> list[Path]:
    """Remove the segments of a job that ended: made since it began (on the file system's clock), by this user, unused.

    What is left is in use, by ranks that are just ending or by somebody's running job, or so young that the job that
    made it may not have had the time to use it.
    """
    segments = {path: born for path in _segments() if (born := _birth(path)) is not None and born >= since}
    if not segments:
        return []
    used, now = in_use(), time.time()
    left = [path for path, born in segments.items() if path.name in used or now - born < YOUNG]
    for path in segments.keys() - set(left):
        with suppress(OSError):
            path.unlink()
    return left


def sweep_session(launcher: int) -> None:
    """Remove the files of a launcher that is gone, by its process number."""
    for path in _sessions(str(launcher)):
        remove(path)


def leftovers() -> list[Path]:
    """What jobs of this user that are gone left: segments that no process has mapped, files of launchers that do not run."""
    used, now = in_use(), time.time()
    births = {path: _birth(path) for path in _segments()}
    segments = [
        path for path, born in births.items() if born and path.name not in used and now - born > SETTLED
    ]
    sessions = [
        path for path in _sessions("*") if _birth(path) and not Path(f"/proc/{_launcher_of(path)}").exists()
    ]
    return sorted(segments + sessions) if Path("/proc").is_dir() else []


def remove(path: Path) -> None:
    """Remove a file or folder, unless somebody else did."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        path.unlink()


def _sessions(launcher: str) -> list[Path]:
    """The folders of launchers, which Open MPI 5 and its predecessors call by their process number."""
    import tempfile  # each rank's supervisor loads this file, and none needs that

    names = (f"ompi.{launcher}", f"prte*.{launcher}.{os.getuid()}") if hasattr(os, "getuid") else ()
    folders = {path for name in names for path in Path(tempfile.gettempdir()).glob(name)}
    return [path for path in folders if _launcher_of(path)]


def _launcher_of(session: Path) -> int | None:
    """The process number in a folder's name; None if it tells another's, as Open MPI's folder of all of a user's jobs does.

    >>> _launcher_of(Path("ompi.2231")), _launcher_of(Path("prterun.n1.2231.0")), _launcher_of(Path("ompi.n1.0"))
    (2231, 2231, None)
    """
    kind, *words = session.name.split(".")
    numbers = words if kind == "ompi" else words[-2:-1]
    return int(numbers[0]) if len(numbers) == 1 and numbers[0].isdecimal() else None


def _segments() -> list[Path]:
    with suppress(OSError):  # no such system
        return [path for path in SHARED.iterdir() if path.name.startswith(OURS)]
    return []


def _birth(path: Path) -> float | None:
    with suppress(OSError):
        status = path.stat()
        return status.st_ctime if status.st_uid == os.getuid() else None
    return None


def in_use() -> set[str]:
    """Return the names of the shared files that processes have mapped."""
    paths = [path for process in list_processes() for path in list_mapped_files(process) or ()]
    return {os.path.basename(path) for path in paths if path.startswith(f"{SHARED}/")}
