"""Replace a rank's output, sleep and ``os._exit`` while the program runs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from threading import get_ident
from typing import Any, NoReturn, TextIO

from spmdsim.simulation.engine.scheduler import Scheduler
from spmdsim.simulation.findings.problems import ERROR, Problem, place_in_stack


class RankOutput:
    """A text stream that collects each rank's text and passes on complete lines.

    Args:
        scheduler: the simulation, which knows the running rank.
        emit: function that is called with (rank, line).
        original: the process's own stream.
    """

    def __init__(self, scheduler: Scheduler, emit: Callable[[int, str], None], original: TextIO) -> None:
        self._scheduler = scheduler
        self._emit = emit
        self._original = original
        self._unfinished: dict[int, str] = {}
        self.encoding = "utf-8"
        self.errors = "replace"

    def write(self, text: str) -> int:
        """Add text of the running rank and pass on its complete lines; return the length of the text.

        A line has no line end when ``emit`` gets it. Text after the last line end is stored until the rank's line is
        complete.
        """
        rank = self._scheduler.current.rank
        *lines, unfinished = (self._unfinished.pop(rank, "") + text).split("\n")
        for line in lines:
            self._emit(rank, line)
        if unfinished:
            self._unfinished[rank] = unfinished
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Do nothing: lines are passed on when they are complete."""

    def close_lines(self) -> None:
        """Pass on the text of all ranks that has no line end."""
        for rank in sorted(self._unfinished):
            self._emit(rank, self._unfinished.pop(rank))

    def isatty(self) -> bool:
        """Return False: the output of many ranks is not a terminal."""
        return False

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the file descriptor of the process's own stream."""
        return self._original.fileno()


@contextmanager
def _replace_attribute(module: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute of a module inside a ``with`` block; restore it afterwards. Yields None.

    Args:
        module: the module or object.
        name: name of the attribute.
        value: its value inside the block.

    Raises:
        AttributeError: If the module has no such attribute.
    """
    original = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, original)


@contextmanager
def capture_output(scheduler: Scheduler, emit: Callable[[int, str], None]) -> Iterator[None]:
    """Pass every rank's printed lines to ``emit(rank, line)`` inside a ``with`` block. Yields None.

    Replaces ``sys.stdout``; stderr is not captured. The end of the block passes on lines without a line end, too, in
    rank order.

    Args:
        scheduler: the simulation, which knows the running rank.
        emit: called with the rank and the line, without its line end.
    """
    stream = RankOutput(scheduler, emit, sys.stdout)
    try:
        with _replace_attribute(sys, "stdout", stream):
            yield
    finally:
        stream.close_lines()


def replace_sleep(scheduler: Scheduler) -> AbstractContextManager[None]:
    """Return a context in which ``time.sleep`` takes modelled time, not real time.

    In a rank, ``time.sleep(0.5)`` adds 0.5 s to the rank's modelled clock, lets other ranks run, and does not wait. A
    negative duration raises ValueError. In other threads of the program, ``time.sleep`` waits as usual. The context
    yields None, and restores ``time.sleep`` at its end.

    Args:
        scheduler: the simulation; a sleep is recorded in its timeline if it has one.
    """
    original = time.sleep

    def sleep(seconds: Any) -> None:
        """Advance the clock of the running rank and let other ranks run; other threads sleep really."""
        if get_ident() != scheduler.thread:
            return original(seconds)
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")
        task = scheduler.current
        start = task.clock
        task.clock += seconds
        if scheduler.timeline is not None:
            scheduler.timeline.record_call(task, "sleep", start, sys._getframe(1))
        scheduler.yield_turn()

    return _replace_attribute(time, "sleep", sleep)


def replace_exit(scheduler: Scheduler) -> AbstractContextManager[None]:
    """Return a context in which ``os._exit`` in a rank ends the simulation with an error.

    The kind of the error is "exit", because a process must not end before MPI_Finalize. The rank's exit code is the
    status of the call, but 1 for ``os._exit(0)``. In other threads, and in processes that the program forks,
    ``os._exit`` ends the process as usual. The context yields None, and restores ``os._exit`` at its end.

    Args:
        scheduler: the simulation.
    """
    original, process = os._exit, os.getpid()

    def end_simulation(status: int) -> NoReturn:
        """End the simulation with a finding; in other processes and threads, end the process."""
        if os.getpid() != process or get_ident() != scheduler.thread:
            original(status)
        task = scheduler.current
        location = replace(place_in_stack(task.rank, sys._getframe(1)), call="os._exit")
        text = (
            f"rank {task.rank} ends its process with os._exit({status}) at {location.where}: MPI was not finalized, so a "
            "launcher ends the job, or the other ranks wait forever"
        )
        task.exit_code = status or 1
        scheduler.fail(Problem("exit", ERROR, text, (task.rank,), (location,)))

    return _replace_attribute(os, "_exit", end_simulation)
