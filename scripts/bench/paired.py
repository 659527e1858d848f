"""Timing two or more ways of the same work side by side: interleaved, in one run, medians of the slowest rank.

On a machine that others use at the same time medians are theirs as much as ours: ``BENCH_STATISTIC=min`` compares
the best times instead.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any


def paired(comm: Any, ways: dict[str, Callable[[], object]], seconds: float = 0.5) -> dict[str, float]:
    """Median (or least) seconds of each way, over rounds in which all ways run in turn.

    Each way runs three times in its turn, and the last run counts: the caches then hold its own buffers, not
    those of the way before it (some ways share theirs).

    Args:
        comm: an mpi4py communicator; each time is the slowest rank's.
        ways: what to time, by name.
        seconds: about how long to measure each way.
    """
    import numpy as np

    slowest, mine = np.empty(1), np.empty(1)

    def once(way: Callable[[], object]) -> float:
        comm.Barrier()
        start = time.perf_counter()
        way()
        mine[0] = time.perf_counter() - start
        comm.Allreduce(mine, slowest, op=_maximum())
        return float(slowest[0])

    for way in ways.values():  # buffers, communicators, types
        once(way)
        once(way)
    longest = max(once(way) for way in ways.values())
    rounds = int(min(200, max(5, seconds / max(3 * longest, 1e-6))))
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        first = number % len(ways)
        for name in (*list(ways)[first:], *list(ways)[:first]):
            once(ways[name])
            once(ways[name])
            times[name].append(once(ways[name]))
    pick = min if os.environ.get("BENCH_STATISTIC") == "min" else statistics.median
    return {name: pick(found) for name, found in times.items()}


def _maximum() -> Any:
    from mpi4py import MPI

    return MPI.MAX


def size_text(nbytes: int) -> str:
    """Bytes in the largest unit that divides them: ``64 MiB``."""
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= factor:
            return f"{nbytes / factor:g} {unit}"
    return f"{nbytes} B"
