"""Time alternatives of one work side by side, and print rows of results; all benchmarks use it.

The alternatives run interleaved in one job. A value is a median over the rounds with its 95 % interval, of the slowest
rank. A case is measured again if other programs used the machine meanwhile. On a machine that is never quiet,
``BENCH_STATISTIC=min`` compares the best times instead, and measures once. ``scripts/bench.sh`` sets the other variables:
``BENCH_ROWS`` is the file to which rows are added, ``BENCH_QUICK=1`` selects a short run (with ``BENCH_PART=0`` the shortest
that runs everything), ``BENCH_BUSY`` is the number of cores that are kept busy on purpose.
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

#: True for a short run: fewer cases, and less time for each.
QUICK = os.environ.get("BENCH_QUICK") == "1"
#: Fraction of the time that benchmarks request.
PART = float(os.environ.get("BENCH_PART", "0.2" if QUICK else "1"))
#: Cores that other programs can use before a case counts as disturbed, and the number of repetitions of a disturbed case.
OTHERS, AGAIN = 0.15, 0 if not PART or os.environ.get("BENCH_STATISTIC") == "min" else 1 if QUICK else 3
#: Largest number of warm-up runs before a timed run, and their largest time in seconds (at least two always run).
WARM, WARMING = 6, 0.1


class Estimate(NamedTuple):
    """A median and its 95 % interval."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> Estimate:
        """Return the estimate multiplied by a factor, to change its unit."""
        return Estimate(*(bound * factor for bound in self))


def estimate(samples: Iterable[float]) -> Estimate:
    """Return the median of samples, and the order statistics that enclose the true one in 95 of 100 cases.

    >>> estimate([3.0, 1.0, 2.0])
    Estimate(value=2.0, low=1.0, high=3.0)
    """
    ordered = sorted(samples)
    reach = round(0.98 * len(ordered) ** 0.5)
    middle = len(ordered) // 2
    low, high = max(0, middle - reach), min(len(ordered) - 1, middle + reach)
    return Estimate(statistics.median(ordered), ordered[low], ordered[high])


class Times(dict[str, float]):
    """The seconds of each alternative, by name.

    Attributes:
        rounds: for each name the seconds of every round, in which all alternatives ran in turn.
        others: cores that other programs used meanwhile.
    """

    def __init__(self, rounds: dict[str, list[float]], others: float) -> None:
        pick = min if _least() else statistics.median
        super().__init__({name: pick(samples) for name, samples in rounds.items()})
        self.rounds, self.others = rounds, others

    def best(self, names: Iterable[str]) -> str:
        """Return the name of the fastest of some alternatives."""
        return min(names, key=self.__getitem__)

    def ratio(self, first: str, second: str) -> Estimate:
        """Return the time of the first alternative divided by the time of the second, round by round."""
        quotient = estimate(a / b for a, b in zip(self.rounds[first], self.rounds[second]))
        return quotient._replace(value=self[first] / self[second]) if _least() else quotient

    def above(self, first: str, second: str) -> Estimate:
        """Return the seconds of the first alternative minus the seconds of the second, round by round."""
        difference = estimate(a - b for a, b in zip(self.rounds[first], self.rounds[second]))
        return difference._replace(value=self[first] - self[second]) if _least() else difference


def paired(comm: Any, alternatives: dict[str, Callable[[], object]], seconds: float = 0.5) -> Times:
    """Time alternatives of one work over rounds in which all of them run in turn.

    Each alternative runs several times in its turn, and only the last run counts. The caches then have its own
    buffers, not the buffers of the alternative before. A large last-level cache needs several runs: 2048 x 2048
    float32 took up to 1.4 times as long in the third run as in the sixth.

    Args:
        comm: an mpi4py communicator; each time is that of the slowest rank.
        alternatives: the alternatives, by name.
        seconds: approximate time to measure each alternative.

    Returns:
        Median (or smallest) seconds by name, with the rounds, of the attempt that other programs disturbed least.
    """
    seconds_of = _stopwatch(comm)

    # Create buffers, communicators and types, and let repeated calls choose implementations.
    for alternative in alternatives.values():
        for _ in range(10 if PART else 1):
            if seconds_of(alternative) > 0.1 * seconds:
                break
    longest = max(seconds_of(alternative) for alternative in alternatives.values())
    before = max(2, min(WARM, int(WARMING / max(longest, 1e-6)))) if PART else 0
    rounds = int(min(200, max(5 if PART else 1, PART * seconds / max((before + 1) * longest, 1e-6))))
    attempts = []
    for _ in range(1 + AGAIN):
        times: dict[str, list[float]] = {name: [] for name in alternatives}
        neighbours = Neighbours(comm)
        for number in range(rounds):
            first = number % len(alternatives)
            for name in (*list(alternatives)[first:], *list(alternatives)[:first]):
                for _ in range(before):
                    seconds_of(alternatives[name])
                times[name].append(seconds_of(alternatives[name]))
        attempts.append(Times(times, neighbours.cores()))
        if attempts[-1].others <= OTHERS:
            break
    return min(attempts, key=lambda attempt: attempt.others)


def once(comm: Any, alternatives: dict[str, Callable[[], object]]) -> Times:
    """Time alternatives that take minutes in a single round."""
    seconds, neighbours = _stopwatch(comm), Neighbours(comm)
    return Times(
        {name: [seconds(alternative)] for name, alternative in alternatives.items()}, neighbours.cores()
    )


def _stopwatch(comm: Any) -> Callable[[Callable[[], object]], float]:
    """Return the function that runs an alternative on all ranks and returns the seconds of the slowest."""
    import numpy as np

    slowest, own_seconds = np.empty(1), np.empty(1)

    def seconds(alternative: Callable[[], object]) -> float:
        comm.Barrier()
        start = time.perf_counter()
        alternative()
        own_seconds[0] = time.perf_counter() - start
        comm.Allreduce(own_seconds, slowest, op=_operation("MAX"))
        return float(slowest[0])

    return seconds


class Neighbours:
    """A count of the cores that other programs use from its creation on, by Linux's processor time; 0 elsewhere.

    Args:
        comm: the ranks whose own time does not count, all on this machine; None for this process only.
    """

    def __init__(self, comm: Any = None) -> None:
        self._comm = comm
        self._start = self._now()

    def cores(self) -> float:
        """Return the cores used since the creation, equal on all ranks, without those kept busy on purpose."""
        wall, busy, own_seconds = (b - a for a, b in zip(self._start, self._now()))
        busy_cores = (
            (busy - own_seconds) / wall - float(os.environ.get("BENCH_BUSY", "0"))
            if wall > 0 and busy
            else 0.0
        )
        return max(0.0, busy_cores if self._comm is None else self._comm.bcast(busy_cores))

    def _now(self) -> tuple[float, float, float]:
        """Return the time, the busy seconds of all cores, and the processor seconds of the own ranks."""
        own_seconds = time.process_time()
        if self._comm is not None:
            own_seconds = self._comm.allreduce(own_seconds)
        try:
            with open("/proc/stat", encoding="ascii") as file:
                user, nice, system, _, _, irq, soft, steal = map(int, file.readline().split()[1:9])
        except (OSError, ValueError):
            return time.perf_counter(), 0.0, own_seconds
        busy = (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")
        return time.perf_counter(), busy, own_seconds


def work_ratio(work: Callable[[], object], bound: Callable[[], object], rounds: int = 5) -> Times:
    """Return the processor times of ``work`` and ``bound`` in this process, which run in turns."""
    times: dict[str, list[float]] = {"work": [], "bound": []}
    neighbours = Neighbours()
    work()
    bound()
    for _ in range(rounds):
        for name, function in (("work", work), ("bound", bound)):
            start = time.thread_time()
            function()
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
    """Print a row of results as text on rank 0, and append it as JSON to the file of ``scripts/bench.sh``.

    Args:
        group: the comparison; docs/speed.md has one line for each group.
        case: the case in the group.
        measurement: the value, with its interval if it has one.
        unit: unit of the value; ``x`` for a ratio.
        most: the goal, if it is a largest value.
        least: the goal, if it is a smallest value.
        others: cores that other programs used meanwhile.
        note: a remark.
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
    what: str, by: str, case: str, times: Times, alternatives: tuple[str, str], nbytes: int, note: str
) -> None:
    """Print a row that compares a collective with one written by hand.

    From 256 KiB on the value is a ratio; below, it is the difference in microseconds.

    Args:
        what: the moved data.
        by: the author of the other implementation.
        case: the case.
        times: the seconds of all alternatives.
        alternatives: the names of this library's alternative and of the other one.
        nbytes: bytes of the tensor.
        note: a remark.
    """
    if nbytes >= 1 << 18:
        row(
            f"{what} from 256 KiB, of {by}",
            case,
            times.ratio(*alternatives),
            most=1.05,
            others=times.others,
            note=note,
        )
    else:
        above, most = times.above(*alternatives).times(1e6), 25 if oversubscribed() else 3
        row(f"{what} below 256 KiB, above {by}", case, above, "us", most=most, others=times.others, note=note)


def meets_goal(entry: dict[str, Any]) -> bool | None:
    """Return True if a row meets its goal; None if it has no goal."""
    if entry["most"] is None and entry["least"] is None:
        return None
    above = entry["least"] is None or entry["value"] >= entry["least"]
    return above and (entry["most"] is None or entry["value"] <= entry["most"])


def goal_text(entry: dict[str, Any]) -> str:
    """Return the goal of a row as text."""
    words = [f"<= {entry['most']:g}"] if entry["most"] is not None else []
    return " and ".join(words + ([f">= {entry['least']:g}"] if entry["least"] is not None else []))


def row_text(entry: dict[str, Any]) -> str:
    """Return a row as a line of text."""
    verdict = {True: "pass", False: "FAIL", None: ""}[meets_goal(entry)]
    interval = f"[{figure(entry['low'])}, {figure(entry['high'])}]" if entry["low"] < entry["high"] else ""
    label = f"{entry['group']}: {entry['case']}"
    text = f"{label:<76} {figure(entry['value']):>9} {entry['unit']:<10} {interval:<20} {goal_text(entry):<9} {verdict}"
    disturbed = f"  disturbed: others used {entry['others']:.1f} cores" if entry["others"] > OTHERS else ""
    return (text.rstrip() + disturbed + (f"  ({entry['note']})" if entry["note"] else "")).rstrip()


def figure(value: float) -> str:
    """Return a number with three significant digits.

    >>> figure(1.0449), figure(1234.5), figure(0.0)
    ('1.04', '1,234', '0.00')
    """
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def speaks() -> bool:
    """Return True if this process prints."""
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is None or not mpi.Is_initialized() or mpi.Is_finalized() or mpi.COMM_WORLD.Get_rank() == 0


def oversubscribed() -> bool:
    """Return True if this job has more ranks than this machine has cores."""
    return _ranks() > (os.cpu_count() or 1)


def size_text(nbytes: int) -> str:
    """Return bytes in the largest unit, such as ``64 MiB``."""
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= factor:
            return f"{nbytes / factor:g} {unit}"
    return f"{nbytes} B"


def resident() -> float:
    """Return the memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def quantile(samples: Sequence[float], fraction: float) -> float:
    """Return the sample below which the fraction ``fraction`` of all samples lies."""
    return sorted(samples)[min(len(samples) - 1, int(len(samples) * fraction))]


def _ranks() -> int:
    mpi = sys.modules.get("mpi4py.MPI")
    return (
        mpi.COMM_WORLD.Get_size()
        if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized()
        else 1
    )


def _least() -> bool:
    """Return True if the smallest times count instead of medians."""
    return os.environ.get("BENCH_STATISTIC") == "min"


def _operation(name: str) -> Any:
    from mpi4py import MPI

    return getattr(MPI, name)
