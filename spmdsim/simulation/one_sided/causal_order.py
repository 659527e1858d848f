"""The order of events on different ranks that the program guarantees, by vector clocks.

An event happens before another one if the program order of a rank, messages, collectives and locks lead from the first
to the second in every run. Two accesses of one memory that no such order relates may happen at the same time.
See L. Lamport, "Time, clocks, and the ordering of events in a distributed system", 1978.

The engine calls `release` and `acquire` where ranks synchronise, from the creation of the first window on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from spmdsim.simulation.engine.scheduler import RankThread, Scheduler, Task


class CausalOrder:
    """Vector clocks of all ranks.

    Entry s of the clock of rank r is the number of releases of rank s that happen before the next event of rank r.

    Attributes:
        observers: by rank, functions that are called with the running rank before it synchronises. They find the
            stores of the rank since their last call.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        size = len(scheduler.tasks)
        self._clocks = [np.zeros(size, np.int32) for _ in range(size)]
        for rank, clock in enumerate(self._clocks):
            clock[rank] = 1
        self.observers: dict[int, list[Callable[[Task], None]]] = {}
        self._running = scheduler.current
        self._enter_rank = scheduler.on_enter
        scheduler.on_enter = self._switch_to

    def add_rank(self, past: Any) -> None:
        """Add a rank, which gets the next number.

        Args:
            past: the events that happen before its first one, as of `release`; None for none.
        """
        size = len(self._clocks) + 1
        first_clock = np.zeros(size, np.int32) if past is None else np.resize(past, size)
        first_clock[-1] = 1
        self._clocks = [np.append(clock, np.int32(0)) for clock in self._clocks]
        self._clocks.append(first_clock)

    def _switch_to(self, task: RankThread) -> None:
        """Find the stores of the rank that ran, before a thread of the next rank runs."""
        self.observe(self._running.task)
        self._running = task
        self._enter_rank(task)

    def observe(self, task: Task) -> None:
        """Find the stores of a rank to the memory of windows since the last call."""
        for observer in self.observers.get(task.rank, ()):
            observer(task)

    def time(self, task: Task) -> int:
        """Return the time of an event that happens now on a rank, as the rank counts it."""
        return int(self._clocks[task.rank][task.rank])

    def has_seen(self, task: Task, rank: int, time: int) -> bool:
        """Return True if an event of another rank happens before the next event of ``task``.

        Args:
            task: the rank of the later event.
            rank: the rank of the earlier event.
            time: the time of the earlier event, as its rank counts it.
        """
        return bool(self._clocks[task.rank][rank] >= time)

    def release(self, task: Task) -> Any:
        """Return the events that happen before this one, for ranks that the rank ``task`` lets continue."""
        self.observe(task)
        clock = self._clocks[task.rank]
        past = clock.copy()
        clock[task.rank] += 1
        return past

    def acquire(self, task: Task, past: Any, stores_first: bool = True) -> None:
        """Order events of another rank before the next events of a rank.

        Args:
            task: the rank that continues because of the other one.
            past: the result of the other rank's `release`; None: nothing is ordered.
            stores_first: True if stores of the rank since its last synchronisation happen before this event. False
                after a blocking receive, whose data the other rank has stored.
        """
        if stores_first:
            self.observe(task)
        if past is not None:
            clock = self._clocks[task.rank][: len(past)]  # ranks may have been added since the release
            np.maximum(clock, past, out=clock)
        if not stores_first:
            self.observe(task)

    def join_calls(self, calls: Sequence[Any]) -> None:
        """Set the events that each call of a collective knows when the collective is complete.

        Args:
            calls: the calls of all ranks in rank order; ``past`` of each is the result of its rank's `release`.
        """
        first = calls[0]
        flow = first.rule.flow
        sources = calls if flow != "down" else [calls[first.root]]
        merged = merge(*(call.past for call in sources))
        for call in calls:
            if flow != "up" or call.rank == call.root:
                call.past = merged


def merge(*past: Any) -> Any:
    """Return the events that are in any of some results of `release`; None entries have no events."""
    clocks = [clock for clock in past if clock is not None]
    if len({len(clock) for clock in clocks}) > 1:  # ranks have been added between the releases
        size = max(len(clock) for clock in clocks)
        clocks = [np.pad(clock, (0, size - len(clock))) for clock in clocks]
    return np.maximum.reduce(clocks) if clocks else None
