"""Trying the ways of a step that repeats: which one each call takes, and which one is kept. Pure: no clock, no MPI."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from spmdsim.errors import UsageTypeError, many
from spmdsim.pictured import Pictured
from spmdsim.redistribution.ways.tuning import NOTHING, Finding, Wisdom, keep
from spmdsim.redistribution.ways.way import Way
from spmdsim.settings import TUNE, TUNE_MODES

#: Ways that the model puts within so many times the best are tried, and at most so many.
WITHIN, MOST = 2.0, 4
#: Calls in which they are, one after the other: the first ten calls of a step decide.
CALLS = 9
#: How often each way is tried where all of them are.
EACH = 6
#: How often a trial is made longer, where one way is best at its best, and another one at its worst.
ROUNDS = 4
#: A way is left for another that takes less than this share of its time.
BETTER = 0.95
#: Calls after which the ways are tried again, how many times as many it is the next time, and calls after which those are
#: tried that were found before. A few tries on a busy machine say little: what a way took counts once more.
AGAIN, RARER, KNOWN = 32, 4, 1000


def tune_mode() -> str:
    """Return the mode of the setting ``SPMDSIM_TUNE``: "off", "first" (also for a file) or "full"."""
    mode = TUNE.read()
    return mode if mode in TUNE_MODES else TUNE.default


def require_reproducible(value: object) -> bool:
    """Return the parameter ``reproducible`` of a world; raise UsageTypeError if it is no bool."""
    if not isinstance(value, bool):
        raise UsageTypeError(f"MPIWorld: reproducible must be True or False, got {value!r}")
    return value


def candidates(ways: Sequence[Way], mode: str) -> tuple[Way, ...]:
    """The ways that are tried, of all that there are, the best one first by the model.

    ``"off"``: the first alone; ``"first"``: those that the model puts near it; ``"full"``: all.

    >>> [way.name for way in candidates([Way("a", nanoseconds=5), Way("b", nanoseconds=9), Way("c", nanoseconds=11)], "first")]
    ['a', 'b']
    """
    if mode == "full":
        return tuple(ways)
    if mode == "off":
        return (ways[0],)
    return tuple(way for way in ways if way.nanoseconds <= WITHIN * ways[0].nanoseconds)[:MOST]


def tries(count: int, mode: str) -> int:
    """How often each of so many ways is tried.

    >>> [tries(count, "first") for count in (2, 3, 4)]
    [4, 2, 2]
    """
    return EACH if mode == "full" else 2 * max(1, CALLS // (2 * count))


class Trial:
    """What the ranks of a group know of a step whose ways they try; the same on all of them, call by call.

    Each way is tried an even number of times, after so many calls which the chosen one makes; what is known from before is not
    tried. ``least``: the microseconds of each way in the last two trials, at best; ``last``: in the last one; ``turn``: calls of
    a trial so far.

    >>> trial = Trial(("typed", "packed"), each=2, waiting=0)
    >>> for took in (90, 80, 60, 50):
    ...     trial.note(took)
    >>> trial.over, trial.mine
    (True, [90, 80, 60, 50])
    >>> trial.decide(trial.mine)
    >>> trial.ways[trial.chosen], trial.least, trial.waiting
    ('packed', (80, 50), 32)
    """

    __slots__ = (
        *("again", "chosen", "each", "last", "least"),
        *("mine", "remembered", "rounds", "turn", "waiting", "ways"),
    )

    def __init__(self, ways: Sequence[str], each: int, waiting: int, finding: Finding | None = None) -> None:
        self.ways, self.each, self.waiting = tuple(ways), each, waiting
        self.turn, self.chosen, self.again, self.rounds = 0, 0, AGAIN, 1
        self.mine: list[float] = []
        self.last: tuple[float, ...] = ()
        self.least: tuple[float, ...] = ()
        self.remembered = finding is not None and finding.way in self.ways
        if finding is not None and self.remembered:
            self.chosen, self.waiting = self.ways.index(finding.way), KNOWN

    @property
    def way(self) -> int:
        """The way of this call of a trial: each makes two in a row, since the first one finds another way's data in the cache."""
        return self.turn // 2 % len(self.ways)

    def note(self, took: float) -> None:
        """A call of the trial took so many microseconds on this rank."""
        self.mine.append(took)
        self.turn += 1

    @property
    def over(self) -> bool:
        """Whether the ranks have to agree now."""
        return self.turn >= self.each * len(self.ways) * self.rounds

    def decide(self, slowest: Sequence[float]) -> None:
        """Keep the best way, by the times of the slowest rank: the earlier choice unless another one is clearly better.

        Where the times contradict each other, since somebody else wanted the machine, the trial goes on.
        """
        count = len(self.ways)
        first, second = ([slowest[half::2][k::count] for k in range(count)] for half in (0, 1))
        last = tuple(min(*cold, *warm) for cold, warm in zip(first, second))
        self.least = tuple(map(min, last, self.last or last))
        best = min(range(count), key=self.least.__getitem__)
        if (
            min(range(count), key=last.__getitem__)
            != min(range(count), key=lambda k: sorted(second[k])[(len(second[k]) - 1) // 2])
            and self.rounds < ROUNDS
        ):
            self.rounds += 1
            return
        if self.least[best] < BETTER * self.least[self.chosen]:
            self.chosen = best
        self.mine, self.turn, self.rounds, self.remembered, self.last = [], 0, 1, False, last
        self.waiting, self.again = self.again, RARER * self.again


@dataclass(frozen=True)
class TunedStep:
    """A step in words, the way that it takes and why; and what each way took that was tried, at best, on the slowest rank."""

    step: str
    ranks: int
    way: str
    microseconds: dict[str, float]
    why: str

    @staticmethod
    def of(step: str, ranks: int, trial: Trial) -> TunedStep:
        """What a trial came to so far."""
        took, why = dict(zip(trial.ways, trial.least)), "by the model: it was not tried yet"
        if trial.remembered:
            why = "found before: in the file of SPMDSIM_TUNE"
        elif took:
            others = ", ".join(f"{way} {took[way]:.1f}" for way in sorted(took, key=took.__getitem__))
            why = f"tried, us: {others}"
        elif trial.turn:
            why = f"by the model: {many(trial.turn, 'try was', 'tries were')} made so far"
        elif len(trial.ways) == 1:
            why = "by the model: no other comes near it"
        return TunedStep(step, ranks, trial.ways[trial.chosen], took, why)


@dataclass(frozen=True, repr=False)
class TunedSteps(Pictured):
    """Which ways the steps of a world take, and why; see :attr:`spmdsim.worlds.World.tuning`.

    Those steps that this process took part in and that have several ways, the machine they were tried on, what
    ``SPMDSIM_TUNE`` said, the MPI library, and what was found before.
    """

    steps: tuple[TunedStep, ...] = ()
    machine: str = "no machine: nothing is sent in this world"
    mode: str = "off"
    vendor: str = ""
    known: Wisdom = NOTHING

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """Step, ranks, way and why."""
        return [(one.step, str(one.ranks), one.way, one.why) for one in self.steps]

    def save(self, path: str | Path) -> None:
        """Write what was found to a file that ``SPMDSIM_TUNE`` can name; what stands there of other steps stays.

        One rank writes it: ``if world.ranks[0] == 0: world.tuning.save(path)``.

        Raises:
            InputError: there is something else in the file.
        """
        some = {one.step: Finding(one.way, one.microseconds) for one in self.steps if one.microseconds}
        if self.vendor:
            keep(path, self.vendor, self.known.merged(Wisdom({self.machine: some} if some else {})))

    def __repr__(self) -> str:
        return f"TunedSteps({many(len(self.steps), 'step')}, SPMDSIM_TUNE={self.mode}, on {self.machine})"

    def __str__(self) -> str:
        lines = [f"SPMDSIM_TUNE={self.mode}, on {self.machine}"]
        lines += [f"{step} on {ranks} ranks: {way} ({why})" for step, ranks, way, why in self.rows]
        return "\n".join(lines)
