"""The interpreter's shutdown has a deadline, watched from a process beside: threads, ``atexit`` handlers and ``__del__``.

A rank that stays in one of them keeps all others waiting where MPI ends, and no thread of Python runs there any more. What
the main program does is not looked at, however long it takes, nor is waiting for other ranks.
"""

from __future__ import annotations

import faulthandler
import math
import os
import re
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from spmdsim.shutdown.processes import read_status
from spmdsim.shutdown.starting import CODE, end_the_other, read_marks, start_beside

#: Seconds that a process has to say where it is.
ANSWER_SECONDS = 1.0
#: The place of a process in a function that is not written in Python.
NO_LINES = "a function without lines of Python"
#: Marks of the watched process: it waits for other ranks, or goes on.
WAITS, GOES_ON = b"w", b"g"
#: The signal that has a process write where its threads are.
ASK = getattr(signal, "SIGUSR2", signal.SIGTERM)
PACKAGE = str(Path(__file__).resolve().parent.parent) + os.sep
_THREAD = re.compile(r"hread 0x([0-9a-f]+)")
_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')

_marks: list[int] = []


class StackFrame(NamedTuple):
    """A place in a stack."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.function} at {os.path.basename(self.file)}:{self.line}"


def watch_shutdown(rank: int, size: int, seconds: float) -> None:
    """Start a child process that ends the job if this process's shutdown blocks for too long.

    After ``seconds`` the child asks for the stacks of all threads by a signal. If the user's code or a thread blocks, it
    prints the rank and the place, and ends the job with code 2. The clock restarts if the process waits for other ranks
    (:func:`waiting_for_ranks`), does not answer, or works in a function without lines of Python, such as the interpreter's
    own clearing of many objects. Nothing is watched if the platform has no ``fork``, if ``seconds`` is infinite, or if no
    process can be started.

    Args:
        rank: the rank of this process, for the message.
        size: the number of ranks, for the message.
        seconds: the deadline (``SPMDSIM_DEADLINE``).
    """
    if not hasattr(os, "fork") or not hasattr(faulthandler, "register") or math.isinf(seconds):
        return
    main = threading.main_thread().ident or 0
    others = {t.ident or 0: t.name for t in threading.enumerate() if t.ident != main and not t.daemon}
    process, (read, write) = os.getpid(), os.pipe()
    signal.signal(ASK, signal.SIG_IGN)  # what holds again when the interpreter is gone
    faulthandler.register(ASK, file=write, all_threads=True)

    def watch() -> None:
        os.close(write)
        begin, waits = time.monotonic(), False
        spent = _measure_used(process)
        while True:
            marks = read_marks(max(0.1, begin + seconds - time.monotonic()))
            if marks == b"":
                return
            if marks is not None:
                begin, waits = time.monotonic(), marks.endswith(WAITS)
            elif not waits and time.monotonic() >= begin + seconds:
                place = find_place(_ask(process, read), main, others)
                before, spent = spent, _measure_used(process)
                if place and (place != NO_LINES or before == spent):
                    who = f"rank {rank} of {size} has not ended {seconds:g} s after its program"
                    end_the_other(f"{who}: {place} blocks, the job ends (SPMDSIM_DEADLINE allows more)", CODE)
                    return
                begin = time.monotonic()  # it waits where MPI ends, or is stopped: others see that

    with suppress(OSError):  # no memory for a process
        _marks[:] = start_beside(watch)[:1]
    os.close(read)


@contextmanager
def waiting_for_ranks() -> Iterator[None]:
    """Let the shutdown take as long as it likes in the block, where this rank waits for others."""
    _mark(WAITS)
    try:
        yield
    finally:
        _mark(GOES_ON)


def _mark(mark: bytes) -> None:
    with suppress(OSError):
        for number in _marks:
            os.write(number, mark)


def _ask(process: int, answer: int) -> str:
    """The stacks of a process, as ``faulthandler`` writes them; empty if it does not answer."""
    os.kill(process, ASK)
    text, end = b"", time.monotonic() + ANSWER_SECONDS
    while select.select([answer], [], [], max(0.0, end - time.monotonic()))[0]:
        text += os.read(answer, 1 << 16)
        end = min(end, time.monotonic() + ANSWER_SECONDS / 5)
    return text.decode(errors="replace")


def _measure_used(process: int) -> float | None:
    status = read_status(process)
    return None if status is None else status.seconds


def find_place(stacks: str, main: int, others: dict[int, str]) -> str:
    """Return the line that holds up a process's shutdown; empty if this package waits in it, or main is absent.

    Args:
        stacks: as ``faulthandler`` writes them, the innermost frame first.
        main: the number of the main thread.
        others: the names of the threads that are waited for, by number.

    >>> lines = 'Current thread 0x1 (most recent call first):', '  File "a.py", line 3 in __del__'
    >>> find_place(chr(10).join(lines), 1, {})
    '__del__ at a.py:3'
    """
    frames: dict[int, list[StackFrame]] = {}
    here: list[StackFrame] = []
    for line in stacks.splitlines():
        if thread := _THREAD.search(line):
            here = frames.setdefault(int(thread[1], 16), [])
        elif frame := _FRAME.match(line):
            here.append(StackFrame(frame[1], int(frame[2]), frame[3]))
    stack = frames.get(main)
    if stack is None:
        return ""
    if not stack:
        return NO_LINES
    if any(frame.function == "_shutdown" and frame.file == threading.__file__ for frame in stack):
        blocked = [(name, frames[number]) for number, name in others.items() if frames.get(number)]
        return f"thread {blocked[0][0]}, {_users_frame(blocked[0][1])}," if blocked else ""
    return "" if stack[0].file.startswith(PACKAGE) else str(_users_frame(stack))


def _users_frame(stack: list[StackFrame]) -> StackFrame:
    """The innermost frame of the user's, else the innermost one."""
    installed = (os.path.dirname(os.__file__) + os.sep, sys.prefix + os.sep + "lib", PACKAGE, "<frozen")
    return next((frame for frame in stack if not frame.file.startswith(installed)), stack[0])
