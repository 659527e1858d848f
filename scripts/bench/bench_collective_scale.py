"""How long verifying, pricing and simulating collectives takes: seconds and events per second, printed as a table.

Run it from the repository: ``python scripts/bench/bench_collective_scale.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from spmdsim.collectives import schedule_of
from spmdsim.collectives.verification import verify
from spmdsim.cost import (
    LogGOPS,
    Machine,
    parse_topology,
    predict,
    price,
    program_of,
    simulate_program,
)
from spmdsim.cost.networks.link_load import compressed_rounds


def seconds(work: Callable[[], object]) -> float:
    """Time of the fastest of three runs, each from scratch."""
    times = []
    for _ in range(3):
        compressed_rounds.cache_clear()
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def verifying() -> None:
    """Every message of every rank is followed."""
    print(f"{'verification of all_reduce':<34}{'seconds':>10}")
    for name, ranks in (("ring", 64), ("ring", 256), ("recursive_doubling", 1024)):
        schedule = schedule_of("all_reduce", name, ranks)
        took = seconds(lambda s=schedule: verify(s))
        print(f"{f'{name}, {ranks} ranks':<34}{took:>10.3f}")
    print()


def pricing() -> None:
    """Prices at rank counts that must not be materialised."""
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
    print(f"{'all_reduce':<22}{'ranks':>10}{'machine':>10}{'by rounds':>11}{'seconds':>10}")
    for name, ranks, machine, rounds in cases:
        schedule = schedule_of("all_reduce", name, ranks)
        took = seconds(lambda s=schedule, m=machine, r=rounds: price(s, m, 1 << 26, rounds=r))
        words = "yes" if rounds or machine.intra else "no"
        print(f"{name:<22}{ranks:>10,}{machine.name:>10}{words:>11}{took:>10.4f}")


def topologies() -> None:
    """Rounds with shared links."""
    ranks, machine = 4096, Machine.laptop()
    print(f"\n{'links shared by':<44}{'all_reduce, 4096 ranks':>24}{'seconds':>10}")
    for text in ("torus:64x64", "torus:16x16x16", "fat_tree:leaf=32,over=2", "dragonfly:routers=16,hosts=8"):
        network = parse_topology(text, ranks, machine)
        schedule = schedule_of("all_reduce", "rabenseifner", ranks)
        took = seconds(lambda s=schedule, t=network: price(s, machine, 1 << 22, t))
        print(f"{network.name:<44}{'rabenseifner':>24}{took:>10.4f}")


def events() -> None:
    """The event simulator."""
    print(f"\n{'event simulation':<34}{'events':>10}{'seconds':>10}{'events/s':>12}")
    for name, ranks in (
        ("ring", 64),
        ("ring", 256),
        ("recursive_doubling", 4096),
        ("recursive_doubling", 16384),
    ):
        program = program_of(schedule_of("all_reduce", name, ranks), 1 << 16)
        run = simulate_program(program, LogGOPS())
        took = seconds(lambda p=program: simulate_program(p, LogGOPS()))
        print(f"{f'{name}, {ranks} ranks':<34}{run.events:>10,}{took:>10.3f}{run.events / took:>12,.0f}")


def tables() -> None:
    """What a user waits for."""
    took = seconds(lambda: predict("all_reduce", Machine.laptop(), [8], [1 << k for k in range(10, 27, 2)]))
    print(f"\nprediction of all algorithms on 8 ranks, 9 sizes: {took:.3f} s")
    doubling = [1 << k for k in range(1, 17)]
    took = seconds(lambda: predict("all_reduce", Machine.cluster(), doubling, [1 << 20]))
    print(f"prediction of all algorithms on 2 ... 65536 ranks: {took:.3f} s")


if __name__ == "__main__":
    verifying()
    pricing()
    topologies()
    events()
    tables()
