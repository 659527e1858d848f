"""Time verification and prices of collectives, in seconds.

Run it from the repository: ``python scripts/bench/bench_collective_scale.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from paired import row

from spmdsim.collectives import schedule_of
from spmdsim.collectives.verification import verify
from spmdsim.cost import (
    Machine,
    parse_topology,
    predict,
    price,
)
from spmdsim.cost.link_load import compressed_rounds


def seconds(work: Callable[[], object]) -> float:
    """Return the seconds of the fastest of three runs, each with empty caches."""
    times = []
    for _ in range(3):
        compressed_rounds.cache_clear()
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def verifying() -> None:
    """Time the verification of schedules, which follows every message of every rank."""
    for name, ranks in (("ring", 64), ("ring", 256), ("recursive_doubling", 1024)):
        schedule = schedule_of("all_reduce", name, ranks)
        took = seconds(lambda s=schedule: verify(s))
        row("verifying all_reduce", f"{name}, {ranks} ranks", took, "s")


def pricing() -> None:
    """Time prices for many ranks, for which schedules must not be materialised."""
    laptop, cluster = Machine.laptop(), Machine.cluster()
    cases = [
        ("ring", 65_536, laptop, None),
        ("ring", 65_536, laptop, True),
        ("ring", 65_536, cluster, None),
        ("recursive_doubling", 1 << 20, laptop, None),
        ("recursive_doubling", 1 << 20, laptop, True),
        ("recursive_doubling", 1 << 20, cluster, None),
        ("rabenseifner", 1 << 20, cluster, None),
    ]
    for name, ranks, machine, rounds in cases:
        schedule = schedule_of("all_reduce", name, ranks)
        took = seconds(lambda s=schedule, m=machine, r=rounds: price(s, m, 1 << 26, rounds=r))
        words = "by rounds" if rounds or machine.intra else "not by rounds"
        row("pricing all_reduce", f"{name}, {ranks:,} ranks, {machine.name}, {words}", took * 1e3, "ms")


def topologies() -> None:
    """Time prices of rounds in which messages share the links of a network."""
    ranks, machine = 4096, Machine.laptop()
    for text in ("torus:64x64", "torus:16x16x16", "fat_tree:leaf=32,over=2", "dragonfly:routers=16,hosts=8"):
        network = parse_topology(text, ranks, machine)
        schedule = schedule_of("all_reduce", "rabenseifner", ranks)
        took = seconds(lambda s=schedule, t=network: price(s, machine, 1 << 22, t))
        row("pricing all_reduce", f"rabenseifner, 4096 ranks, links of {network.name}", took * 1e3, "ms")


def tables() -> None:
    """Time the predictions of whole tables, for which users wait."""
    took = seconds(lambda: predict("all_reduce", Machine.laptop(), [8], [1 << k for k in range(10, 27, 2)]))
    row("prediction of all algorithms", "8 ranks, 9 sizes", took, "s")
    doubling = [1 << k for k in range(1, 17)]
    took = seconds(lambda: predict("all_reduce", Machine.cluster(), doubling, [1 << 20]))
    row("prediction of all algorithms", "2 to 65,536 ranks", took, "s")


if __name__ == "__main__":
    verifying()
    pricing()
    topologies()
    tables()
