"""Let the clocks of Python's module ``time`` show the modelled time of the running rank."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import get_ident
from typing import Any

from spmdsim.simulation.engine.captured_output import replace_attribute
from spmdsim.simulation.engine.rank_threads import ThreadWait
from spmdsim.simulation.engine.scheduler import Scheduler, Task

#: Resolution of the modelled clock, in seconds.
TICK = 1e-6
#: Clocks of ``time`` that begin at their value at the start of the simulation; the others begin at 0.
_DATED_CLOCKS = frozenset({"time", "monotonic", "perf_counter"})
_CLOCKS = ("time", "monotonic", "perf_counter", "process_time", "thread_time")


def read_clock(task: Task) -> float:
    """Return the modelled clock of a rank in seconds.

    Each call without communication or measured computation since the last one advances the clock: by 1 µs, then 2 µs,
    and so on. So a loop that waits for a time ends soon.

    Args:
        task: the rank, which is running.
    """
    task.scheduler.enter_call(task)
    if task.clock == task.last_wtime:
        task.idle_wtimes += 1
        task.advance(TICK * task.idle_wtimes)
    else:
        task.idle_wtimes = 0
    task.last_wtime = task.clock
    task.scheduler.return_to_program()
    return task.clock


@contextmanager
def replace_clocks(scheduler: Scheduler) -> Iterator[None]:
    """Let ``time.sleep`` and clocks use modelled time inside a ``with`` block. Yields None.

    The clocks of the module ``time`` are ``time``, ``monotonic``, ``perf_counter``, ``process_time`` and ``thread_time``, and those in
    nanoseconds. In other threads of the program than the simulation's they are as usual.

    Args:
        scheduler: the simulation; a sleep is recorded in its timeline if it has one.
    """
    with ExitStack() as stack:
        stack.enter_context(replace_attribute(time, "sleep", _modelled_sleep(scheduler)))
        for name in (name for name in _CLOCKS if hasattr(time, name)):
            start = getattr(time, name)() if name in _DATED_CLOCKS else 0.0
            for clock, unit in ((name, 1), (f"{name}_ns", 10**9)):
                modelled = _modelled_clock(scheduler, getattr(time, clock), start, unit)
                stack.enter_context(replace_attribute(time, clock, modelled))
        yield


def _modelled_clock(
    scheduler: Scheduler, original: Callable[[], float], start: float, unit: int
) -> Callable[[], float]:
    """Return a function that replaces a clock of the module ``time``.

    Args:
        scheduler: the simulation.
        original: the clock, which other threads still read.
        start: its value at modelled time 0, in seconds.
        unit: 1 for a clock in seconds, 10**9 for one in nanoseconds.
    """

    def clock() -> float:
        """Return the modelled clock of the running rank."""
        if get_ident() != scheduler.thread:
            return original()
        seconds = start + read_clock(scheduler.current.task)
        return seconds if unit == 1 else round(seconds * unit)

    return clock


def _modelled_sleep(scheduler: Scheduler) -> Callable[[Any], object]:
    """Return a function that replaces ``time.sleep``, and takes modelled instead of real time.

    In a rank, ``time.sleep(0.5)`` adds 0.5 s to the rank's modelled clock, lets other ranks run, and does not wait. A
    negative duration raises ValueError. Of a rank with several threads, the thread whose sleep ends first continues first.
    In threads of the process, ``time.sleep`` waits as usual.

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
        task = scheduler.current.task
        start = scheduler.enter_call(task)
        if task.is_threaded:
            wait = ThreadWait(scheduler.current, "sleep")
            scheduler.set_timer(wait, seconds)
            scheduler.block(wait)
            return
        task.advance(seconds)
        if scheduler.timeline is not None:
            scheduler.timeline.record_call(task, "sleep", start, sys._getframe(1))
        scheduler.yield_turn()

    return sleep
