"""What MPI libraries leave in memory that processes share when a job ends badly, removed."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

SHARED = Path("/dev/shm")

OURS = ("mpich_shm_", "sm_segment.", "osc_sm.", "vader_segment.")
"""How the names of such files begin: MPICH's, and Open MPI's."""


def sweep(since: float) -> list[Path]:
    """Remove the segments of a job that ended: made since it began, by this user, in use by no process.

    Args:
        since: when the job began, in seconds of the file system's clock.

    Returns:
        What is still in use: of ranks that are just ending, or of somebody's running job.
    """
    found = [path for path in _segments() if _made_since(path, since)]
    if not found:
        return []
    used = in_use()
    for path in found:
        if path.name not in used:
            with suppress(OSError):
                path.unlink()
    return [path for path in found if path.name in used]


def _segments() -> list[Path]:
    try:
        return [path for path in SHARED.iterdir() if path.name.startswith(OURS)]
    except OSError:  # no such system
        return []


def _made_since(path: Path, since: float) -> bool:
    try:
        found = path.stat()
    except OSError:
        return False
    return found.st_uid == os.getuid() and found.st_ctime >= since


def in_use() -> set[str]:
    """The names of the shared files that processes have mapped."""
    names = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            names |= {
                line.rpartition("/")[2].removesuffix(" (deleted)")
                for line in maps.read_text().splitlines()
                if f" {SHARED}/" in line
            }
    return names
