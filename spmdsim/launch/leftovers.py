"""What MPI libraries leave in memory that processes share when a job ends badly, removed."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

SHARED = Path("/dev/shm")

OURS = ("mpich_shm_", "sm_segment.", "osc_sm.", "vader_segment.")
"""How the names of such files begin: MPICH's, and Open MPI's."""

YOUNG = 0.25
"""Seconds after which a segment that no process has mapped is nobody's; before, the job that made it may just do so."""


def sweep(since: float) -> list[Path]:
    """Remove the segments of a job that ended: made since it began, by this user, in use by no process.

    Args:
        since: when the job began, in seconds of the file system's clock.

    Returns:
        What is left: in use, by ranks that are just ending or by somebody's running job, or so young that the job that
        made it may not have had the time to use it.
    """
    segments = {path: born for path in _segments() if (born := _made(path)) is not None and born >= since}
    if not segments:
        return []
    used = in_use()
    now = time.time()
    left = [path for path, born in segments.items() if path.name in used or now - born < YOUNG]
    for path in segments.keys() - set(left):
        with suppress(OSError):
            path.unlink()
    return left


def _segments() -> list[Path]:
    try:
        return [path for path in SHARED.iterdir() if path.name.startswith(OURS)]
    except OSError:  # no such system
        return []


def _made(path: Path) -> float | None:
    """When a file of this user's was made."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ctime if status.st_uid == os.getuid() else None


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
