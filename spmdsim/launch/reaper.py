"""A process whose descendants end with it, also those that left their parent's process group or session.

Linux hands orphans to the nearest ancestor that asked for them (``PR_SET_CHILD_SUBREAPER``). A reaper is such an ancestor:
it waits for one child and terminates everything below itself when the child ends, when it is asked to, or when its own
parent ends. On other systems a reaper terminates its child alone.
"""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

#: Numbers of Linux's prctl: signal at the parent's end, adoption of orphans.
SIGNAL_WITH_PARENT, ADOPT_ORPHANS = 1, 36
#: A reaper passes this signal on to its child, which says where it is.
ASK = getattr(signal, "SIGXCPU", signal.SIGTERM)


def set_process_option(option: int, value: int) -> None:
    """Call Linux's prctl with one argument; do nothing on systems without it."""
    with suppress(Exception):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def fork_below_reaper() -> int:
    """Fork a process below a reaper.

    Returns:
        0 in the new process; in the calling process the reaper's number. The reaper ends as the new process ended: with its
        exit code, or by its signal. SIGTERM ends the reaper and all of its descendants.
    """
    caller = os.getpid()
    reaper = os.fork()
    if reaper:
        return reaper
    set_process_option(ADOPT_ORPHANS, 1)
    signal.signal(signal.SIGTERM, lambda *_: _terminate())
    set_process_option(SIGNAL_WITH_PARENT, signal.SIGTERM)
    if os.getppid() != caller:
        os._exit(1)
    child = os.fork()
    if child:
        try:
            _reap(child)
        finally:  # whatever happens, nothing of the caller's goes on in the reaper
            os._exit(1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return 0


def _reap(child: int) -> NoReturn:
    """Wait for the child, terminate what it left, and end as it ended. No file of the caller stays open."""
    signal.signal(signal.SIGTERM, lambda *_: _terminate(child))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if ASK != signal.SIGTERM:
        signal.signal(ASK, lambda *_: _send(child, ASK))
    with suppress(OSError):
        os.closerange(0, max(map(int, os.listdir("/proc/self/fd"))) + 1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    terminate_descendants()
    if code < 0:
        with suppress(OSError, ValueError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(max(code, 0))


def _terminate(*children: int) -> NoReturn:
    terminate_descendants(*children)
    os._exit(1)


def terminate_descendants(*children: int) -> None:
    """Kill the children of this process, and those that it adopts when they die, until none is left.

    Args:
        *children: children that are known, for systems that do not list them.
    """
    while True:
        for child in list_children() or children:
            _send(child, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def list_children() -> list[int]:
    """Return the numbers of this process's children; of none where the system does not list them."""
    me = os.getpid()
    with suppress(OSError):
        return [*map(int, Path(f"/proc/{me}/task/{me}/children").read_text().split())]
    children = []
    for folder in Path("/proc").glob("[0-9]*"):  # a kernel without such a list
        with suppress(OSError, IndexError):
            if (folder / "stat").read_text().rpartition(")")[2].split()[1] == str(me):
                children.append(int(folder.name))
    return children


def _send(process: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(process, number)
