"""Time the simulation of a ring all_reduce with Send and Recv, and compare it with a lower bound.

The bound is an equal program on bare greenlets: equal arithmetic, and sends that wait until they are received. The
simulator's sends also wait, so that it reports programs that depend on buffers. The bound has no tags, no checks, no
times and no diagnosis.

Run it from the repository: ``python scripts/bench/bench_simulation.py [ranks]``.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from spmdsim.simulation import simulate

Pass = Callable[[Any, int], None]


def ring(rank: int, size: int, send: Pass, receive: Pass) -> float:
    """Compute the sum of all rank numbers by a ring all_reduce.

    Odd ranks receive first, because a send waits until it is received.

    Args:
        rank: the rank.
        size: number of ranks.
        send: sends an array to a rank.
        receive: receives an array from a rank.
    """
    sums, came = np.full(size, float(rank)), np.empty(1)
    after, before = (rank + 1) % size, (rank - 1) % size
    for step in range(2 * (size - 1)):
        leaving, coming = (rank - step) % size, (rank - step - 1) % size
        if rank % 2:
            receive(came, before)
            send(sums[leaving : leaving + 1], after)
        else:
            send(sums[leaving : leaving + 1], after)
            receive(came, before)
        if step < size - 1:
            sums[coming] += came[0]
        else:
            sums[coming] = came[0]
    return float(sums[0])


def run_on_greenlets(size: int) -> list[float]:
    """Run the ring on greenlets that switch to the next rank while they wait; return the sums by rank."""
    from greenlet import greenlet

    boxes: list[deque[Any]] = [deque() for _ in range(size)]
    waits = [False] * size
    sums: list[float] = []
    ready: deque[Any] = deque()

    def run(rank: int) -> None:
        """Run the program of a rank."""
        box, wait = boxes[rank], ranks[rank].parent.switch

        def send(array: Any, dest: int) -> None:
            boxes[dest].append((array, rank))
            if waits[dest]:
                waits[dest] = False
                ready.append(ranks[dest])
            wait()

        def receive(array: Any, source: int) -> None:
            if not box:
                waits[rank] = True
                wait()
            array[...], sender = box.popleft()
            ready.append(ranks[sender])

        sums.append(ring(rank, size, send, receive))

    ranks = [greenlet(lambda rank=rank: run(rank)) for rank in range(size)]
    ready.extend(ranks)
    while ready:
        ready.popleft().switch()
    return sums


def main() -> None:
    """Time both in turns."""
    from paired import QUICK, row, work_ratio  # not the program's: each rank would load its own

    size = int(sys.argv[1]) if len(sys.argv) > 1 else 256 if QUICK else 512
    messages = 2 * size * (size - 1)
    expected = size * (size - 1) / 2
    report = simulate(lambda comm: ring(comm.rank, comm.size, comm.Send, comm.Recv), size)
    if set(report.results) != {expected} or set(run_on_greenlets(size)) != {expected}:
        raise SystemExit("a ring did not give the sum")
    times = work_ratio(
        lambda: simulate(lambda comm: ring(comm.rank, comm.size, comm.Send, comm.Recv), size),
        lambda: run_on_greenlets(size),
        3 if QUICK else 5,
    )
    each, least = times["work"] / messages * 1e6, times["bound"] / messages * 1e6
    note = f"{each:.2f} us per message, {least:.2f} on bare greenlets"
    case = f"ring all_reduce by Send and Recv, {size} ranks, {messages:,} messages"
    ratio = times.ratio("work", "bound")
    row("simulated messages, of bare greenlets' time", case, ratio, most=8.0, others=times.others, note=note)


if __name__ == "__main__":
    main()
