"""MPI's sockets and event queues are open files of the process: a program that closes them is told so where it does.

An MPI library without them hangs where it ends, and may print a warning for each look at its queue, without end.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import wraps
from typing import Any

from spmdsim.errors import WorldError
from spmdsim.shutdown.stop import active_world

#: How the system calls such files.
KINDS = "socket:", "anon_inode:[event"
#: The files of MPI that were open when a world was made, with what the system calls them.
_files: dict[int, str] = {}


def guard_mpi_files() -> None:
    """Have ``os.close`` and ``os.closerange`` refuse files that MPI needs: those that are open now; WorldError then."""
    if not _files:
        os.close = _guarded(os.close, lambda number: (number,))
        os.closerange = _guarded(os.closerange, range)
    with suppress(OSError):
        names = {int(number): _name(int(number)) for number in os.listdir("/proc/self/fd")}
        _files.update({number: name for number, name in names.items() if name.startswith(KINDS)})


def _guarded(close: Callable[..., None], files: Callable[..., Iterable[int]]) -> Callable[..., None]:
    @wraps(close)
    def guarded(*numbers: Any) -> None:
        for number in _files.keys() & set(files(*numbers)):
            if _files[number] == _name(number) and active_world() is not None:
                code, line = (frame := sys._getframe(1)).f_code, frame.f_lineno
                call = f"{os.path.basename(code.co_filename)}:{line}: os.{close.__name__}"
                raise WorldError(
                    f"{call}({', '.join(map(str, numbers))}) would close files that MPI needs: close only those that the "
                    "program has opened"
                )
        close(*numbers)

    return guarded


def _name(number: int) -> str:
    with suppress(OSError):
        return os.readlink(f"/proc/self/fd/{number}")
    return ""
