"""Waits of a rank for other ranks of a window: for a lock, for Post, and for Complete."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from spmdsim.simulation.engine.scheduler import Task


@dataclass(slots=True, eq=False)
class WindowWait:
    """Wait in a call of a window, which deadlock explanations read.

    Attributes:
        comm: the window.
        task: the rank that waits.
        name: name of the call, such as "Lock"; ``argument``: its argument as text, or empty.
        awaited: function that returns the ranks of the program for which it waits.
        missing: the action for which it waits, such as "unlocks it".
        reason: function that returns a clause on the cause of the wait, or an empty text.
        every: True if all of these ranks are needed.
    """

    comm: Any
    task: Task
    name: str
    argument: str
    awaited: Callable[[], Iterable[int]]
    missing: str
    reason: Callable[[], str] = str
    every: bool = True
    done: bool = False
    waiter: Any = None
    dest: int = -1
    source: int | None = None

    def describe(self) -> str:
        """Return the call as text, such as ``Lock(rank=0)``."""
        return f"{self.name}({self.argument})" if self.argument else self.name
