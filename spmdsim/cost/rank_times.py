"""Time at which each rank ends a schedule, if ranks enter it at different times; messages and bytes of each rank.

A round takes the time that :func:`spmdsim.cost.pricing.price` gives it. A rank ends a round one such time after the
latest of three: the rank has ended its previous round, the ranks that send to it have ended theirs, and all earlier
rounds would be over if all ranks had entered with the first one. So ranks that enter together need exactly the price
of the schedule, and a late rank delays those that depend on its messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spmdsim.collectives import Schedule
from spmdsim.cost.link_load import LinkLoad, link_loads
from spmdsim.cost.machine import Machine
from spmdsim.cost.pricing import load_seconds
from spmdsim.cost.topology import Ints
from spmdsim.pictured import Pictured

#: Most rounds times ranks that are followed one by one; above it, ranks that enter late delay all others.
MOST_RANK_ROUNDS = 4_000_000


@dataclass(frozen=True)
class TimedRound(Pictured):
    """Equal rounds in a row.

    Attributes:
        repeat: number of rounds.
        seconds: seconds of one round.
        sources: sender of each message; ``targets``: its receiver.
        members: ranks that send or receive.
    """

    repeat: int
    seconds: float
    sources: Ints
    targets: Ints
    members: Ints


class TimedSchedule(Pictured):
    """The rounds of a schedule with their times on a machine.

    Args:
        schedule: the schedule.
        machine: the machine, whose ranks 0, 1, ... run it.
        nbytes: message size as the collective counts it.
        itemsize: bytes per element; chunks are cut between elements.
        sizes: bytes of each chunk, if blocks differ; None to cut ``nbytes`` evenly.

    Attributes:
        rounds: the rounds.
        seconds: seconds of all rounds together, if all ranks enter at once.
        messages: messages that each rank sends; ``nbytes``: their bytes.

    >>> from spmdsim.collectives import schedule_of
    >>> machine = Machine("m", alpha=1.0, beta=0.0)
    >>> timed = TimedSchedule(schedule_of("broadcast", "binomial", 4), machine, 100)
    >>> timed.rank_ends([0, 0, 0, 0]), timed.rank_ends([0, 0, 0, 5]), timed.messages.tolist()
    ([2.0, 2.0, 2.0, 2.0], [2.0, 2.0, 2.0, 6.0], [2, 0, 1, 0])
    """

    def __init__(
        self,
        schedule: Schedule,
        machine: Machine,
        nbytes: int,
        itemsize: int = 1,
        sizes: Sequence[int] | None = None,
    ) -> None:
        self.size = schedule.size
        loads = list(link_loads(schedule, nbytes, itemsize, sizes))
        self.rounds = tuple(_timed_round(load, machine) for load in loads)
        self.seconds = float(sum(entry.repeat * entry.seconds for entry in self.rounds))
        self.messages = np.zeros(self.size, np.int64)
        self.nbytes = np.zeros(self.size)
        for load in loads:
            self.messages += load.repeat * np.bincount(load.sources, minlength=self.size)
            self.nbytes += load.repeat * np.bincount(load.sources, load.nbytes, self.size)

    def rank_ends(self, entries: Sequence[float]) -> list[float]:
        """Return the time in seconds at which each rank ends its last round.

        A rank without messages ends when it enters. With more than :data:`MOST_RANK_ROUNDS` (4,000,000) rounds times
        ranks, and ranks that do not enter together, all ranks end after the last one has entered.

        Args:
            entries: the time at which each rank enters.
        """
        ends = np.array(entries, dtype=np.float64)
        first, last = float(ends.min()), float(ends.max())
        count = sum(entry.repeat for entry in self.rounds)
        if first < last and count * self.size > MOST_RANK_ROUNDS:
            return [last + self.seconds] * self.size
        elapsed = 0.0
        for entry in self.rounds:
            if first == last:
                elapsed += entry.repeat * entry.seconds
                ends[entry.members] = first + elapsed
                continue
            for _ in range(entry.repeat):
                begins = np.maximum(ends, first + elapsed)
                np.maximum.at(begins, entry.targets, ends[entry.sources])
                ends[entry.members] = begins[entry.members] + entry.seconds
                elapsed += entry.seconds
        times: list[float] = ends.tolist()
        return times


def _timed_round(load: LinkLoad, machine: Machine) -> TimedRound:
    """Return the messages of equal rounds with the seconds of one round.

    In a round without messages, all ranks take part, because some reduce.
    """
    members = np.unique(np.concatenate((load.sources, load.targets))) if load.count else np.arange(load.ranks)
    return TimedRound(load.repeat, load_seconds(load, machine, None), load.sources, load.targets, members)
