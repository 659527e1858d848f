"""The lock of one rank's window: the ranks that hold it, and those that wait for it."""

from __future__ import annotations

from collections import deque
from typing import Any

from spmdsim.simulation.data.constants import LOCK_EXCLUSIVE
from spmdsim.simulation.engine.mailboxes import finish
from spmdsim.simulation.engine.scheduler import Scheduler
from spmdsim.simulation.one_sided.causal_order import merge
from spmdsim.simulation.one_sided.waits import WindowWait


class TargetLock:
    """A lock that one rank holds alone, or several ranks share; waiting ranks get it in the order of their calls.

    Attributes:
        holders: the kind of lock that each rank of the window holds.
        free_at: modelled time of the last unlock.
    """

    def __init__(self) -> None:
        self.holders: dict[int, int] = {}
        self.free_at = 0.0
        self._queue: deque[tuple[int, int, WindowWait]] = deque()
        self._seen_exclusive: Any = None
        self._seen_shared: Any = None

    def excludes(self, kind: int) -> bool:
        """Return True if the holders exclude another lock of this kind."""
        return bool(self.holders) and LOCK_EXCLUSIVE in (kind, *self.holders.values())

    def request(self, rank: int, kind: int, wait: WindowWait) -> None:
        """Take the lock if it is free and no rank waits for it; else wait for it.

        Args:
            rank: the rank in the window.
            kind: LOCK_EXCLUSIVE or LOCK_SHARED.
            wait: the wait of the rank, which is done when it has the lock.
        """
        if self._queue or self.excludes(kind):
            self._queue.append((rank, kind, wait))
        else:
            self.holders[rank] = kind
            wait.done = True

    def seen_by(self, kind: int) -> Any:
        """Return the events before the unlocks that a lock of this kind follows."""
        return merge(self._seen_exclusive, self._seen_shared if kind == LOCK_EXCLUSIVE else None)

    def release(self, scheduler: Scheduler, rank: int, past: Any, clock: float) -> None:
        """Give up the lock of a rank, and give it to ranks that wait for it.

        Args:
            scheduler: the simulation.
            rank: the rank in the window.
            past: the events before the unlock.
            clock: its modelled time.
        """
        if self.holders.pop(rank) == LOCK_EXCLUSIVE:
            self._seen_exclusive = merge(self._seen_exclusive, past)
        else:
            self._seen_shared = merge(self._seen_shared, past)
        self.free_at = max(self.free_at, clock)
        while self._queue and not self.excludes(self._queue[0][1]):
            waiting, kind, wait = self._queue.popleft()
            self.holders[waiting] = kind
            finish(scheduler, wait)
