"""Processes of this machine: what the system says of them, and how a process ends with its parent.

Linux answers by ``/proc`` and ``prctl``. On other systems the lists are empty, and options are not set.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")

#: Options of Linux's prctl: send a signal when the parent ends; let processes of the same user look into this one; gain no
#: rights; adopt orphans.
SIGNAL_WITH_PARENT, READABLE, NO_NEW_RIGHTS, ADOPT_ORPHANS = 1, 4, 38, 36
_IS_READABLE = 3


class ProcessStatus(NamedTuple):
    """The state of a process (a letter, as ``ps`` shows it), its parent, and the processor time that it used in seconds."""

    state: str
    parent: int
    seconds: float


def read_status(process: int) -> ProcessStatus | None:
    """Return the status of a process, or None if the system does not tell it."""
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
    """Return the numbers of the children of a process."""
    with suppress(OSError, ValueError):
        return [*map(int, (PROC / f"{process}/task/{process}/children").read_text().split())]
    # The kernel may lack these lists.
    statuses = {number: read_status(number) for number in list_processes()}
    return [number for number, status in statuses.items() if status and status.parent == process]


def list_mapped_files(process: int) -> list[str] | None:
    """Return the paths of the files that a process has mapped, or None if the system does not tell them."""
    try:
        lines = (PROC / str(process) / "maps").read_bytes().decode(errors="replace").splitlines()
    except OSError:
        return None
    fields = [line.split(maxsplit=5) for line in lines]
    return [line[5].removesuffix(" (deleted)") for line in fields if len(line) == 6 and line[5][0] == "/"]


def set_process_option(option: int, value: int) -> None:
    """Call prctl with one argument for this process."""
    with suppress(Exception):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


@contextmanager
def make_unreadable() -> Iterator[None]:
    """Forbid other processes of this user to read or change this one, inside of the block."""
    before = 1
    with suppress(Exception):
        before = max(ctypes.CDLL(None).prctl(_IS_READABLE, 0, 0, 0, 0), 0)
    set_process_option(READABLE, 0)
    try:
        yield
    finally:
        set_process_option(READABLE, before)


def can_watch_processes() -> bool:
    """Return True if this system tells when a process ends. Old kernels and some containers refuse it at run time."""
    if not hasattr(os, "pidfd_open"):
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True
