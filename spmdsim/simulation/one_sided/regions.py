"""The memory of windows: stores of the program to it, and the accesses that may conflict with later ones."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from spmdsim.simulation.engine.scheduler import Scheduler, Task
from spmdsim.simulation.findings.faults import is_new
from spmdsim.simulation.findings.problems import ERROR, Problem, ProgramPlace, place_in_stack
from spmdsim.simulation.one_sided.accesses import WRITE, Access, Footprint

#: Memory of more bytes is not compared to find stores of the program.
MOST_COMPARED = 1 << 20


class Region:
    """A block of memory that belongs to a window.

    Stores of the program are found by comparing the memory with a copy, when a rank that can store synchronises.
    Loads, and stores of equal values, cannot be seen.

    Attributes:
        memory: the bytes, as a 1-D array.
        address: the address of the first byte.
        label: a text such as "the window of rank 1".
        freed: the call that freed the memory, or None.
    """

    def __init__(self, scheduler: Scheduler, memory: Any, label: str, ranks: Sequence[int]) -> None:
        self.memory = memory
        self.address = int(memory.__array_interface__["data"][0])
        self.label = label
        self.freed: ProgramPlace | None = None
        self._scheduler = scheduler
        self._copy = memory.copy() if 0 < len(memory) <= MOST_COMPARED else None
        self._accesses: dict[Any, Access] = {}
        self._stores: dict[int, Access] = {}
        self._ranks = ranks
        if self._copy is not None:
            for rank in ranks:
                scheduler.order.observers.setdefault(rank, []).append(self.find_stores)

    def release(self) -> None:
        """Stop to look for stores, because the memory belongs to the window no more."""
        if self._copy is not None:
            for rank in self._ranks:
                self._scheduler.order.observers[rank].remove(self.find_stores)

    def find_stores(self, task: Task) -> None:
        """Record the changes of the memory since the last call as a store of a rank.

        Args:
            task: the running rank, which has run since the last call.
        """
        changed = np.flatnonzero(self.memory != self._copy)
        if not len(changed):
            return
        footprint = Footprint.of_positions(changed, 1, self.address)
        self.refresh(footprint)
        where = place_in_stack(task.rank, sys._getframe(1))
        if self.freed is not None:
            self._report_freed(where, self.freed)
            return
        access = Access(task, WRITE, footprint, "store", where, time=self._scheduler.order.time(task))
        self._stores[task.rank] = access
        self.add(access)

    def take_store(self, task: Task) -> Access | None:
        """Return the last store of a rank since the last call, or None."""
        return self._stores.pop(task.rank, None)

    def refresh(self, footprint: Footprint) -> None:
        """Copy bytes that the simulation has written, so that they are no store of the program."""
        if self._copy is not None:
            for start, stop in footprint.runs():
                changed = slice(start - self.address, stop - self.address)
                self._copy[changed] = self.memory[changed]

    def add(self, access: Access) -> None:
        """Record an access; add an error for each earlier one with which it conflicts."""
        order = self._scheduler.order
        for earlier in self._accesses.values():
            if not earlier.conflicts(access) or earlier.is_before(access.task, order):
                continue
            run = earlier.footprint.common_run(access.footprint)
            if run is not None:
                self._report(earlier, access, run)
        self._accesses[access.key()] = access

    def forget_complete(self) -> None:
        """Forget all complete accesses, because a synchronisation of all ranks orders them before later ones."""
        self._accesses = {key: access for key, access in self._accesses.items() if access.time is None}

    def _report_freed(self, where: ProgramPlace, freed: ProgramPlace) -> None:
        """Add the error "use_after_free" on a store to memory that was freed, once per source line.

        Args:
            where: the call after the store.
            freed: the call that freed the memory.
        """
        if is_new(self._scheduler, "freed", freed.where, where.where):
            before = str(where) if where.line else "its end"
            text = (
                f"rank {where.rank} stores to {self.label} before {before}, but {freed} has freed this memory"
            )
            problem = Problem("use_after_free", ERROR, text, (where.rank,), (where, freed))
            self._scheduler.problems.append(problem)

    def _report(self, earlier: Access, later: Access, run: tuple[int, int]) -> None:
        """Add the error "conflicting_access" on two accesses, once per pair of source lines.

        Args:
            earlier: the access that was made first in this run.
            later: the other one.
            run: the first addresses that both touch: the first one, and the one behind the last.
        """
        first, second = earlier.where, later.where
        if self._scheduler.closing:
            return
        if not is_new(self._scheduler, "access", first.where, earlier.call, second.where, later.call):
            return
        start, stop = (address - self.address for address in run)
        advice = (
            "complete the first one before with Flush, or by closing the epoch"
            if earlier.task is later.task
            else "no synchronisation orders both, so the result depends on the run"
        )
        text = f"{earlier.describe()} and {later.describe()}: both touch bytes {start} to {stop - 1} of {self.label}; {advice}"
        ranks = tuple(sorted({earlier.task.rank, later.task.rank}))
        problem = Problem("conflicting_access", ERROR, text, ranks, (first, second))
        self._scheduler.problems.append(problem)
