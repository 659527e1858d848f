"""A rank's output line by line, its sleep in modelled time, and its end by ``os._exit``."""

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
    """A text stream that knows which rank writes and forwards complete lines."""

    def __init__(self, scheduler: Scheduler, emit: Callable[[int, str], None], real: TextIO) -> None:
        self._scheduler = scheduler
        self._emit = emit
        self._real = real
        self._partial: dict[int, str] = {}
        self.encoding = "utf-8"
        self.errors = "replace"

    def write(self, text: str) -> int:
        """Collect text of the running rank and forward completed lines."""
        if not text:
            return 0
        rank = self._scheduler.current.rank
        if "\n" not in text:
            self._partial[rank] = self._partial.get(rank, "") + text
            return len(text)
        *lines, rest = (self._partial.pop(rank, "") + text).split("\n")
        for line in lines:
            self._emit(rank, line)
        if rest:
            self._partial[rank] = rest
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write several pieces."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Do nothing: lines are forwarded when they are complete."""

    def close_lines(self) -> None:
        """Forward the text that has no line end."""
        for rank in sorted(self._partial):
            self._emit(rank, self._partial.pop(rank))

    def isatty(self) -> bool:
        """Return False: the output of many ranks is no terminal."""
        return False

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the file descriptor of the process's own stream."""
        return self._real.fileno()


@contextmanager
def _replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute of a module inside a ``with`` block."""
    real = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, real)


@contextmanager
def own_output(scheduler: Scheduler, emit: Callable[[int, str], None]) -> Iterator[None]:
    """Pass every rank's printed lines to ``emit(rank, line)``."""
    stream = RankOutput(scheduler, emit, sys.stdout)
    try:
        with _replaced(sys, "stdout", stream):
            yield
    finally:
        stream.close_lines()


def virtual_sleep(scheduler: Scheduler) -> AbstractContextManager[None]:
    """Replace ``time.sleep``: it takes modelled time and lets the other ranks run."""
    real = time.sleep

    def sleep(seconds: Any) -> None:
        if get_ident() != scheduler.thread:
            return real(seconds)
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")
        task = scheduler.current
        begin = task.clock
        task.clock += seconds
        if scheduler.timeline is not None:
            scheduler.timeline.call(task, "sleep", begin, sys._getframe(1))
        scheduler.yield_turn()

    return _replaced(time, "sleep", sleep)


def own_end(scheduler: Scheduler) -> AbstractContextManager[None]:
    """Replace ``os._exit``: a rank's call ends the simulation with a finding, but not the simulating process."""
    real, process = os._exit, os.getpid()

    def leave(status: int) -> NoReturn:
        if os.getpid() != process or get_ident() != scheduler.thread:
            real(status)
        task = scheduler.current
        place = replace(place_in_stack(task.rank, sys._getframe(1)), call="os._exit")
        text = (
            f"rank {task.rank} ends its process with os._exit({status}) at {place.where}: MPI was not finalized, so a "
            "launcher ends the job, or the other ranks wait for ever"
        )
        task.exit_code = status or 1
        scheduler.fail(Problem("exit", ERROR, text, (task.rank,), (place,)))

    return _replaced(os, "_exit", leave)
