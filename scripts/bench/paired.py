"""What all benches share: ways of the same work timed side by side, and rows in which they say what came out.

Ways run interleaved in one job. A value is a median over the rounds with its 95 % interval, of the slowest rank; a case
during which others used the machine is measured again. On a machine that is never quiet ``BENCH_STATISTIC=min`` compares
the best times instead, and measures once. ``scripts/bench.sh`` sets the rest: ``BENCH_ROWS`` is the file that rows are added to,
``BENCH_QUICK=1`` asks for a short run (``BENCH_PART=0`` beside it for the shortest that runs all), ``BENCH_BUSY`` says how many cores are kept busy on purpose.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

#: A short run: fewer cases, and a part of the time for each.
QUICK = os.environ.get("BENCH_QUICK") == "1"
#: The part of the time that benches ask for.
PART = float(os.environ.get("BENCH_PART", "0.2" if QUICK else "1"))
#: Cores that others may use before a case counts as disturbed, and how often it is measured again then.
OTHERS, AGAIN = 0.15, 0 if not PART or os.environ.get("BENCH_STATISTIC") == "min" else 1 if QUICK else 3
#: Runs of a way before the one that counts, at most, and the seconds that they may take (two are always made).
WARM, WARMING = 6, 0.1


class Estimate(NamedTuple):
    """A median and its 95 % interval."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> Estimate:
        """In another unit."""
        return Estimate(*(one * factor for one in self))


def estimate(samples: Iterable[float]) -> Estimate:
    """The median of samples, and the order statistics between which the true one lies in 95 of 100 cases.

    >>> estimate([3.0, 1.0, 2.0])
    Estimate(value=2.0, low=1.0, high=3.0)
    """
    ordered = sorted(samples)
    reach = round(0.98 * len(ordered) ** 0.5)
    middle = len(ordered) // 2
    low, high = max(0, middle - reach), min(len(ordered) - 1, middle + reach)
    return Estimate(statistics.median(ordered), ordered[low], ordered[high])


class Times(dict[str, float]):
    """Seconds of each way, and what they were in every round.

    Attributes:
        rounds: by name the seconds of every round, in which all ways ran in turn.
        others: cores that others used meanwhile.
    """

    def __init__(self, rounds: dict[str, list[float]], others: float) -> None:
        pick = min if _least() else statistics.median
        super().__init__({name: pick(samples) for name, samples in rounds.items()})
        self.rounds, self.others = rounds, others

    def best(self, names: Iterable[str]) -> str:
        """The fastest of some ways."""
        return min(names, key=self.__getitem__)

    def ratio(self, one: str, other: str) -> Estimate:
        """One way's time over another's, round by round."""
        quotient = estimate(a / b for a, b in zip(self.rounds[one], self.rounds[other]))
        return quotient._replace(value=self[one] / self[other]) if _least() else quotient

    def above(self, one: str, other: str) -> Estimate:
        """Seconds of one way beyond another's, round by round."""
        difference = estimate(a - b for a, b in zip(self.rounds[one], self.rounds[other]))
        return difference._replace(value=self[one] - self[other]) if _least() else difference


def paired(comm: Any, ways: dict[str, Callable[[], object]], seconds: float = 0.5) -> Times:
    """Time ways of the same work over rounds in which all of them run in turn.

    Each way runs several times in its turn, and the last run counts: the caches then hold its own buffers, not those of
    the way before it (some ways share theirs). A large last cache takes several runs to do so: 2048 x 2048 float32 seemed
    to take up to 1.4 times as long in the third run as in the sixth.

    Args:
        comm: an mpi4py communicator; each time is the slowest rank's.
        ways: what to time, by name.
        seconds: about how long to measure each way.

    Returns:
        Median (or least) seconds by name, with the rounds. Of several attempts the one that others disturbed least.
    """
    seconds_of = _stopwatch(comm)

    for way in ways.values():  # buffers, communicators, types; repeated calls choose their ways
        for _ in range(10 if PART else 1):
            if seconds_of(way) > 0.1 * seconds:
                break
    longest = max(seconds_of(way) for way in ways.values())
    before = max(2, min(WARM, int(WARMING / max(longest, 1e-6)))) if PART else 0
    rounds = int(min(200, max(5 if PART else 1, PART * seconds / max((before + 1) * longest, 1e-6))))
    attempts = []
    for _ in range(1 + AGAIN):
        times: dict[str, list[float]] = {name: [] for name in ways}
        neighbours = Neighbours(comm)
        for number in range(rounds):
            first = number % len(ways)
            for name in (*list(ways)[first:], *list(ways)[:first]):
                for _ in range(before):
                    seconds_of(ways[name])
                times[name].append(seconds_of(ways[name]))
        attempts.append(Times(times, neighbours.cores()))
        if attempts[-1].others <= OTHERS:
            break
    return min(attempts, key=lambda one: one.others)


def once(comm: Any, ways: dict[str, Callable[[], object]]) -> Times:
    """A single round of ways that take minutes."""
    seconds, neighbours = _stopwatch(comm), Neighbours(comm)
    return Times({name: [seconds(way)] for name, way in ways.items()}, neighbours.cores())


def _stopwatch(comm: Any) -> Callable[[Callable[[], object]], float]:
    """What runs a way on all ranks and gives the slowest one's seconds."""
    import numpy as np

    slowest, mine = np.empty(1), np.empty(1)

    def seconds(way: Callable[[], object]) -> float:
        comm.Barrier()
        start = time.perf_counter()
        way()
        mine[0] = time.perf_counter() - start
        comm.Allreduce(mine, slowest, op=_operation("MAX"))
        return float(slowest[0])

    return seconds


class Neighbours:
    """How many cores others use from now on, as Linux counts processor time; 0 elsewhere.

    Args:
        comm: the ranks whose own time does not count, all on this machine; None: this process.
    """

    def __init__(self, comm: Any = None) -> None:
        self._comm = comm
        self._start = self._now()

    def cores(self) -> float:
        """The cores since the beginning, the same on all ranks, without those kept busy on purpose."""
        wall, busy, own = (b - a for a, b in zip(self._start, self._now()))
        busy_cores = (
            (busy - own) / wall - float(os.environ.get("BENCH_BUSY", "0")) if wall > 0 and busy else 0.0
        )
        return max(0.0, busy_cores if self._comm is None else self._comm.bcast(busy_cores))

    def _now(self) -> tuple[float, float, float]:
        own = time.process_time()
        if self._comm is not None:
            own = self._comm.allreduce(own)
        try:
            with open("/proc/stat", encoding="ascii") as file:
                user, nice, system, _, _, irq, soft, steal = map(int, file.readline().split()[1:9])
        except (OSError, ValueError):
            return time.perf_counter(), 0.0, own
        busy = (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")
        return time.perf_counter(), busy, own


def work_ratio(work: Callable[[], object], bound: Callable[[], object], rounds: int = 5) -> Times:
    """Processor time of two kinds of work in this process, in turns: ``work`` and ``bound``."""
    times: dict[str, list[float]] = {"work": [], "bound": []}
    neighbours = Neighbours()
    work()
    bound()
    for _ in range(rounds):
        for name, one in (("work", work), ("bound", bound)):
            start = time.thread_time()
            one()
            times[name].append(time.thread_time() - start)
    return Times(times, neighbours.cores())


def row(
    group: str,
    case: str,
    measurement: Estimate | float,
    unit: str = "x",
    *,
    most: float | None = None,
    least: float | None = None,
    others: float = 0.0,
    note: str = "",
) -> None:
    """Say what came out of a case: a line of text, and one of JSON for ``scripts/bench.sh``. Rank 0 speaks.

    Args:
        group: what is compared with what; cases of a group have one line in docs/speed.md.
        case: which of them.
        measurement: the value, with its interval if it has one.
        unit: of the value; ``x`` for a ratio.
        most: the goal, if it is a largest value.
        least: the goal, if it is a smallest value.
        others: cores that others used while it was measured.
        note: anything else to be said.
    """
    if not speaks():
        return
    value = (
        measurement if isinstance(measurement, Estimate) else Estimate(measurement, measurement, measurement)
    )
    entry = {
        "bench": Path(sys.argv[0]).name, "group": group, "case": case, "ranks": _ranks(), "unit": unit,
        "value": value.value, "low": value.low, "high": value.high, "most": most, "least": least,
        "others": round(others, 2), "note": note,
    }  # fmt: skip
    print(row_text(entry), flush=True)
    name = os.environ.get("BENCH_ROWS")
    if name:
        with open(name, "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


def beside_hand(
    what: str, by: str, case: str, times: Times, ways: tuple[str, str], nbytes: int, note: str
) -> None:
    """A row of a collective beside the same by hand: a ratio from 256 KiB on, and microseconds above it below that.

    Args:
        what: what is moved.
        by: whose way it is compared with.
        case: which case.
        times: the seconds of all ways.
        ways: the names of ours and of the other one.
        nbytes: of the tensor.
        note: anything else to be said.
    """
    if nbytes >= 1 << 18:
        row(
            f"{what} from 256 KiB, of {by}",
            case,
            times.ratio(*ways),
            most=1.05,
            others=times.others,
            note=note,
        )
    else:
        above, most = times.above(*ways).times(1e6), 25 if oversubscribed() else 3
        row(f"{what} below 256 KiB, above {by}", case, above, "us", most=most, others=times.others, note=note)


def passed(entry: dict[str, Any]) -> bool | None:
    """Whether a row meets its goal; None where it has none."""
    if entry["most"] is None and entry["least"] is None:
        return None
    above = entry["least"] is None or entry["value"] >= entry["least"]
    return above and (entry["most"] is None or entry["value"] <= entry["most"])


def goal_text(entry: dict[str, Any]) -> str:
    """The goal of a row in words."""
    words = [f"<= {entry['most']:g}"] if entry["most"] is not None else []
    return " and ".join(words + ([f">= {entry['least']:g}"] if entry["least"] is not None else []))


def row_text(entry: dict[str, Any]) -> str:
    """A row as a line."""
    verdict = {True: "pass", False: "FAIL", None: ""}[passed(entry)]
    interval = f"[{figure(entry['low'])}, {figure(entry['high'])}]" if entry["low"] < entry["high"] else ""
    said = f"{entry['group']}: {entry['case']}"
    text = f"{said:<76} {figure(entry['value']):>9} {entry['unit']:<10} {interval:<20} {goal_text(entry):<9} {verdict}"
    disturbed = f"  disturbed: others used {entry['others']:.1f} cores" if entry["others"] > OTHERS else ""
    return (text.rstrip() + disturbed + (f"  ({entry['note']})" if entry["note"] else "")).rstrip()


def figure(value: float) -> str:
    """A number with three digits that count.

    >>> figure(1.0449), figure(1234.5), figure(0.0)
    ('1.04', '1,234', '0.00')
    """
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def speaks() -> bool:
    """Whether this process is the one that prints."""
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is None or not mpi.Is_initialized() or mpi.Is_finalized() or mpi.COMM_WORLD.Get_rank() == 0


def oversubscribed() -> bool:
    """Whether this job has more ranks than this machine has cores."""
    return _ranks() > (os.cpu_count() or 1)


def size_text(nbytes: int) -> str:
    """Bytes in the largest unit that divides them: ``64 MiB``."""
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= factor:
            return f"{nbytes / factor:g} {unit}"
    return f"{nbytes} B"


def resident() -> float:
    """MiB of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def quantile(samples: Sequence[float], part: float) -> float:
    """The sample below which a part of all lie."""
    return sorted(samples)[min(len(samples) - 1, int(len(samples) * part))]


def _ranks() -> int:
    mpi = sys.modules.get("mpi4py.MPI")
    return (
        mpi.COMM_WORLD.Get_size()
        if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized()
        else 1
    )


def _least() -> bool:
    return os.environ.get("BENCH_STATISTIC") == "min"


def _operation(name: str) -> Any:
    from mpi4py import MPI

    return getattr(MPI, name)
