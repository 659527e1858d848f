"""Time work with and without the comparison of what ranks call, read and make tensors of, in turns.

Run: mpirun -n 4 python scripts/bench/bench_agreement.py
On a machine that others use, too, BENCH_STATISTIC=min compares the best times.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import bench_training
import numpy as np
from mpi4py import MPI
from paired import PART, QUICK, paired, row

from spmdsim import Mesh, MPIWorld, Tensor
from spmdsim.worlds.agreement.call import Call
from spmdsim.worlds.agreement.call_log import CallLog
from spmdsim.worlds.agreement.shared_board import AREA, SharedBoard
from spmdsim.worlds.provenance import Provenance

#: Repeated calls per measurement.
CALLS = 200 if PART else 10
#: Rows, width and hidden width of the network.
SIZES = ((256 if PART else 32) if QUICK else 1024, 1024, 4096)
#: Bytes of an array of which tensors are made.
BYTES = 10_000_000 if QUICK else 100_000_000


def small(world: MPIWorld) -> Callable[[], object]:
    """Return a function that makes CALLS small all_gathers."""
    mesh = Mesh((world.size,), ("x",))
    x, replicated = Tensor.from_global(np.ones(8 * world.size, np.float32), mesh("x"), world), mesh(None)

    def work() -> None:
        for _ in range(CALLS):
            x.to(replicated)

    return work


def reads(world: MPIWorld) -> Callable[[], object]:
    """Return a function that reads a replicated number CALLS times, each time after a small all_gather."""
    mesh = Mesh((world.size,), ("x",))
    x, replicated = Tensor.from_global(np.ones(8 * world.size, np.float32), mesh("x"), world), mesh(None)
    loss = Tensor.from_global(np.array([0.5]), replicated, world)

    def work() -> None:
        for _ in range(CALLS):
            x.to(replicated)
            loss.item()

    return work


def source(world: MPIWorld) -> Callable[[], object]:
    """Return a function that makes a tensor, split over all ranks, of an array that every rank has."""
    layout, array = Mesh((world.size,), ("x",))("x", None), np.ones((1000, BYTES // 4000), np.float32)
    return lambda: Tensor.from_global(array, layout, world)


def logging(rounds: int = 2000) -> float:
    """Return the seconds to log a repeated call: the best of many rounds in one process.

    Other programs hardly change the best of many rounds.

    Args:
        rounds: number of rounds of CALLS calls in a run of full length.
    """
    board = SharedBoard([memoryview(mmap.mmap(-1, AREA * 8)).cast("q")], (0,), 0)
    log, call = CallLog(board, "", (0,), (0,), Provenance(), 60.0), Call.from_words("bench", (0,))
    best: dict[str, float] = {}

    def logged() -> None:
        log.end(log.begin(call))

    for _ in range(max(1, int(PART * rounds))):
        for name, alternative in {"logged": logged, "alone": lambda: None}.items():
            start = time.perf_counter()
            for _ in range(CALLS):
                alternative()
            best[name] = min(best.get(name, 1.0), (time.perf_counter() - start) / CALLS)
    return best["logged"] - best["alone"]


def main() -> None:
    """Print the table."""
    comm = MPI.COMM_WORLD
    worlds = {"compared": MPIWorld(check="auto"), "not compared": MPIWorld(check=False)}
    group = "what comparing all calls costs"
    row(group, "logging a repeated call, in one process", logging() * 1e6, "us", most=5.0)
    for words, work, goal in (
        (f"small all_gather, {CALLS} calls", small, 10.0),
        (f"item() after it, {CALLS} calls", reads, None),
    ):
        times = paired(comm, {name: work(world) for name, world in worlds.items()}, 10.0)
        more = times.above("compared", "not compared").times(1e6 / CALLS)
        row(group, words, more, "us", most=goal, others=times.others)
    times = paired(
        comm, {name: bench_training.mlp(world, *SIZES)["ours"] for name, world in worlds.items()}, 10.0
    )
    words = "MLP {1} -> {2} -> {1}, {0} rows, forward + backward".format(*SIZES)
    row(group, words, times.ratio("compared", "not compared"), most=1.02, others=times.others)
    times = paired(comm, {name: source(world) for name, world in worlds.items()}, 10.0)
    words = f"from_global of an array of {BYTES // 10**6} MB, divided by the ranks"
    row("what comparing arrays costs", words, times.ratio("compared", "not compared"), others=times.others)


if __name__ == "__main__":
    main()
