"""Waiting time in modelled seconds, by cause and by the line of the program that waits."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spmdsim.pictured import Pictured
from spmdsim.simulation.findings.problems import (
    ProgramPlace,
    Site,
    describe_call_place,
    site_key,
    site_of,
    user_call,
)

if TYPE_CHECKING:
    from spmdsim.simulation.engine.scheduler import Task

LATE_SENDER, LATE_RECEIVER, COLLECTIVE = "late sender", "late receiver", "collective"


@dataclass(frozen=True)
class WaitingTime(Pictured):
    """Modelled time that a rank waits in one line.

    Attributes:
        location: the rank, the call and the line.
        cause: "late sender": a receive waits until its message starts; "late receiver": a send waits until its receive
            is posted; "collective": a rank waits for others to enter.
        seconds: the sum over all calls in this line.
        count: number of waits.

    >>> from spmdsim.simulation import compute, simulate
    >>> def program(comm):
    ...     compute(seconds=2.0 * comm.rank)
    ...     comm.Barrier()
    >>> [(wait.location.rank, wait.cause, wait.seconds) for wait in simulate(program, 2).waits]
    [(0, 'collective', 2.0)]
    """

    location: ProgramPlace
    cause: str
    seconds: float
    count: int

    def to_dict(self) -> dict[str, Any]:
        """Return the keys of the place, "cause", "seconds" and "count"."""
        return self.location.to_dict() | {"cause": self.cause, "seconds": self.seconds, "count": self.count}


def count_wait(task: Task, cause: str, until: float, name: str, site: Site | None) -> None:
    """Add the time that a call waits to the rank's total for this cause and source line.

    Nothing is added if ``until`` is not after the rank's clock, or if no line of the program is on the stack.

    Args:
        task: the running rank. Call this function before its clock advances.
        cause: one of the causes of :class:`WaitingTime`.
        until: modelled time at which the wait ends.
        name: name of the blocking call; not used if ``site`` is None.
        site: place of the call in the program. None for a call that completes an earlier operation, such as ``Wait``:
            the name and the place of the call are then taken from the stack.
    """
    seconds = until - task.clock
    if seconds <= 0:
        return
    if site is None:
        name, frame = user_call(sys._getframe(1))
        if frame is None:
            return
        site = site_of(frame)
    entry = task.waits.setdefault((cause, name, *site_key(site)), [site, 0.0, 0])
    entry[1] += seconds
    entry[2] += 1


def waiting_times(tasks: list[Task]) -> tuple[WaitingTime, ...]:
    """Return the waiting times of all ranks, the longest first; of equal ones, that of the lowest rank.

    Args:
        tasks: the ranks.
    """
    waits = [
        WaitingTime(describe_call_place(task.rank, name, site), cause, seconds, count)
        for task in tasks
        for (cause, name, *_), (site, seconds, count) in task.waits.items()
    ]
    return tuple(sorted(waits, key=lambda wait: -wait.seconds))
