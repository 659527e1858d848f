"""Trials: choose the implementation of each call of a step. This module uses no clock and no MPI."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from spmdsim.errors import UsageTypeError, many
from spmdsim.pictured import Pictured
from spmdsim.redistribution.implementations.implementation import Implementation
from spmdsim.redistribution.implementations.tuning import NOTHING, TrialRecord, TrialRecords, save_tuning
from spmdsim.settings import TUNE, TUNE_MODES

#: In the mode "first", implementations that the model prices within this factor of the best are tried.
WITHIN = 2.0
#: How often each implementation is tried, in the mode "first" and in the mode "full".
FEW_TRIES, MANY_TRIES = 2, 6
#: Another implementation replaces the chosen one if it takes less than this share of the time.
BETTER = 0.95
#: Calls between the first and the second trial, and the growth of that number from trial to trial. A trial repeats because
#: another program may disturb it.
PAUSE, GROWTH = 32, 4
#: Calls before the first trial of a step that has a record.
RECORDED_PAUSE = 1000


def tune_mode() -> str:
    """Return the mode of the setting ``SPMDSIM_TUNE``: "off", "first" (also for a file) or "full"."""
    mode = TUNE.read()
    return mode if mode in TUNE_MODES else TUNE.default


def require_reproducible(value: object) -> bool:
    """Return the parameter ``reproducible`` of a world. Raise UsageTypeError if it is not a bool."""
    if not isinstance(value, bool):
        raise UsageTypeError(f"MPIWorld: reproducible must be True or False, got {value!r}")
    return value


def select_candidates(implementations: Sequence[Implementation], mode: str) -> tuple[Implementation, ...]:
    """Return the implementations that trials measure, the model's choice first.

    * Mode "off": the first one.
    * Mode "first": those whose price is at most ``WITHIN`` (2) times the price of the first one.
    * Mode "full": all.

    Args:
        implementations: the implementations of a step, with prices in nanoseconds; at least one.
        mode: the mode of ``SPMDSIM_TUNE``; another word counts as "first".

    >>> prices = Implementation("a", nanoseconds=5), Implementation("b", nanoseconds=9), Implementation("c", nanoseconds=11)
    >>> [[one.name for one in select_candidates(prices, mode)] for mode in ("off", "first", "full")]
    [['a'], ['a', 'b'], ['a', 'b', 'c']]
    """
    if mode == "full":
        return tuple(implementations)
    limit = WITHIN * implementations[0].nanoseconds
    close_ones = [implementation for implementation in implementations if implementation.nanoseconds <= limit]
    return (implementations[0],) if mode == "off" else tuple(close_ones)


class Trial:
    """Trial of a step: its implementations and their times.

    It is equal on all ranks of a group, call by call.

    Args:
        names: the implementations, the model's choice first.
        tries: how often each one is tried: an even number.
        pause: calls of the chosen implementation before the trial.
        record: the result of an earlier trial, or None.

    Attributes:
        chosen: the index of the implementation to use.
        times: microseconds of this rank's calls in the current trial.
        least: least microseconds of each implementation in the last two trials.
        is_recorded: True if the choice comes from ``record``.

    >>> trial = Trial(("typed", "packed"), tries=2, pause=0)
    >>> for microseconds in (90, 80, 60, 50):
    ...     trial.add(microseconds)
    >>> trial.is_over
    True
    >>> trial.decide(trial.times)
    >>> trial.names[trial.chosen], trial.least, trial.pause
    ('packed', (80, 50), 32)
    """

    def __init__(
        self, names: Sequence[str], tries: int, pause: int, record: TrialRecord | None = None
    ) -> None:
        self.names, self.tries, self.pause = tuple(names), tries, pause
        self.chosen, self.next_pause = 0, PAUSE
        self.times: list[float] = []
        self.least: tuple[float, ...] = ()
        self._last: tuple[float, ...] = ()
        self.is_recorded = record is not None and record.implementation in self.names
        if record is not None and self.is_recorded:
            self.chosen, self.pause = self.names.index(record.implementation), RECORDED_PAUSE

    def index_at(self, call: int) -> int:
        """Return the index of the implementation that a call of the trial uses.

        Each one makes two calls in a row, because the first finds the data of another implementation in the cache.
        """
        return call // 2 % len(self.names)

    @property
    def current(self) -> int:
        """Index of the implementation of the next call of the trial."""
        return self.index_at(len(self.times))

    def add(self, microseconds: float) -> None:
        """Add the microseconds of a call on this rank."""
        self.times.append(microseconds)

    @property
    def is_over(self) -> bool:
        """True if the trial has all its calls, so that the ranks must agree on the result now."""
        return len(self.times) >= self.tries * len(self.names)

    def decide(self, slowest: Sequence[float]) -> None:
        """Choose an implementation by the times of two trials, and schedule the next trial.

        The fastest implementation, by its least time in both trials, replaces the chosen one only if this time is
        below ``BETTER`` (0.95) times that of the chosen one. The next trial starts after ``pause`` calls:
        :data:`PAUSE` (32) calls after the first trial, then :data:`GROWTH` (4) times as many from trial to trial.

        Args:
            slowest: for each call of the trial, the microseconds of its slowest rank.
        """
        last = tuple(
            min(time for call, time in enumerate(slowest) if self.index_at(call) == k)
            for k in range(len(self.names))
        )
        self.least = tuple(map(min, last, self._last or last))
        best = min(range(len(last)), key=self.least.__getitem__)
        if self.least[best] < BETTER * self.least[self.chosen]:
            self.chosen = best
        self.times, self._last, self.is_recorded = [], last, False
        self.pause, self.next_pause = self.next_pause, GROWTH * self.next_pause


@dataclass(frozen=True)
class TunedStep:
    """Result of the trials of a step.

    Attributes:
        step: the step in words.
        ranks: the number of ranks of its group.
        implementation: the implementation in use.
        microseconds: the least time of each implementation that was tried.
        why: the reason for the choice, in words.
    """

    step: str
    ranks: int
    implementation: str
    microseconds: dict[str, float]
    why: str

    @property
    def way(self) -> str:
        """Former name of `implementation`."""
        return self.implementation

    @staticmethod
    def of(step: str, ranks: int, trial: Trial) -> TunedStep:
        """Return the chosen implementation of a step, with the least times and the reason for the choice.

        The reason is one of

        - "found before: in the file of SPMDSIM_TUNE";
        - "tried, us: native 3.1, composed 4.5": the least times in microseconds, fastest first;
        - "by the model: ...", because nothing was tried yet, the tries are not complete, or no other implementation
          has a price close to the best.

        The times are empty until the first trial is complete.

        Args:
            step: the step in words.
            ranks: the number of ranks of its group.
            trial: the trial.
        """
        times, why = dict(zip(trial.names, trial.least)), "by the model: it was not tried yet"
        if trial.is_recorded:
            why = "found before: in the file of SPMDSIM_TUNE"
        elif times:
            why = "tried, us: " + ", ".join(
                f"{name} {times[name]:.1f}" for name in sorted(times, key=times.__getitem__)
            )
        elif trial.times:
            why = f"by the model: {many(len(trial.times), 'try was', 'tries were')} made so far"
        elif len(trial.names) == 1:
            why = "by the model: no other comes near it"
        return TunedStep(step, ranks, trial.names[trial.chosen], times, why)


@dataclass(frozen=True, repr=False)
class TunedSteps(Pictured):
    """Implementations of the steps of a world, and the reasons; see :attr:`spmdsim.worlds.World.tuning`.

    Attributes:
        steps: the steps of this process that can have several implementations.
        machine: the machine of the trials.
        mode: the mode of ``SPMDSIM_TUNE``.
        vendor: the MPI library.
        records: the records of earlier trials.
    """

    steps: tuple[TunedStep, ...] = ()
    machine: str = "no machine: nothing is sent in this world"
    mode: str = "off"
    vendor: str = ""
    records: TrialRecords = NOTHING

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """Rows of a table: step, number of ranks, implementation and reason."""
        return [(tuned.step, str(tuned.ranks), tuned.implementation, tuned.why) for tuned in self.steps]

    def save(self, path: str | Path) -> None:
        """Write the records of trials to a file that ``SPMDSIM_TUNE`` can name; keep its others.

        The records are those that were read before, and those of the steps that were tried here. Call it on one rank:
        ``if world.ranks[0] == 0: world.tuning.save(path)``. Nothing is written if the world has no MPI library.

        Args:
            path: the file; it is created if it does not exist.

        Raises:
            InputError: If the file has other contents.
            OSError: If the file cannot be written.
        """
        tried = {
            tuned.step: TrialRecord(tuned.implementation, tuned.microseconds)
            for tuned in self.steps
            if tuned.microseconds
        }
        if self.vendor:
            save_tuning(
                path, self.vendor, self.records.merge(TrialRecords({self.machine: tried} if tried else {}))
            )

    def __repr__(self) -> str:
        return f"TunedSteps({many(len(self.steps), 'step')}, SPMDSIM_TUNE={self.mode}, on {self.machine})"

    def __str__(self) -> str:
        lines = [f"SPMDSIM_TUNE={self.mode}, on {self.machine}"]
        lines += [f"{step} on {ranks} ranks: {name} ({why})" for step, ranks, name, why in self.rows]
        return "\n".join(lines)
