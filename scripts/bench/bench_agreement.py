"""What it costs that the ranks compare all they call: the same work with and without, in one job, in turns.

Run: mpirun -n 2 python scripts/bench/bench_agreement.py
On a machine that others use, too, BENCH_STATISTIC=min compares the best times.
"""

from __future__ import annotations

import math
import mmap
import os
import time
from collections.abc import Callable
from types import SimpleNamespace

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import bench_training
import numpy as np
from mpi4py import MPI
from paired import PART, QUICK, paired, row

from spmdsim import Mesh, MPIWorld, Tensor
from spmdsim.worlds.mpi.board import AREA, Board
from spmdsim.worlds.mpi.noted_calls import Calls
from spmdsim.worlds.provenance import Provenance

#: Repeated calls per measurement.
CALLS = 200
#: Rows, width and hidden width of the network.
SIZES = (256 if QUICK else 1024, 1024, 4096)


def small(world: MPIWorld) -> Callable[[], object]:
    """A small all_gather, again and again."""
    mesh = Mesh((world.size,), ("x",))
    x, whole = Tensor.from_global(np.ones(8 * world.size, np.float32), mesh("x"), world), mesh(None)

    def work() -> None:
        for _ in range(CALLS):
            x.to(whole)

    return work


class Alone:
    """A checker that has no world around it."""

    about, deadline = 0, 60.0

    def __init__(self) -> None:
        self.world, self.provenance = self, Provenance()

    def tensor(self, origin: int) -> None:
        """No tensor has words."""


def noting(rounds: int = 2000) -> float:
    """Seconds to note one repeated call, the best of many rounds in one process: what others do here hardly matters."""
    board = Board([memoryview(mmap.mmap(-1, AREA * 8)).cast("q")], (0,), 0)
    calls = Calls(board, "", (0,), (0,), Alone(), False)  # type: ignore[arg-type]
    calls.due, array, best = math.inf, np.ones(8, np.float32), {}

    def nothing(*_: object) -> None:
        """Nobody else is there."""

    alone = SimpleNamespace(digest=7, compare=nothing, failed=nothing)
    ways = {"noted": calls.noted(np.asarray, alone), "alone": np.asarray}  # type: ignore[arg-type]
    for _ in range(max(1, int(PART * rounds))):
        for name, way in ways.items():
            start = time.perf_counter()
            for _ in range(CALLS):
                way(array)
            best[name] = min(best.get(name, 1.0), (time.perf_counter() - start) / CALLS)
    return best["noted"] - best["alone"]


def main() -> None:
    """Print the table."""
    comm = MPI.COMM_WORLD
    worlds = {"compared": MPIWorld(check="auto"), "not compared": MPIWorld(check=False)}
    rows = {
        f"small all_gather, {CALLS} calls": {name: small(world) for name, world in worlds.items()},
        "MLP {1} -> {2} -> {1}, {0} rows, forward + backward".format(*SIZES): {
            name: bench_training.mlp(world, *SIZES)["ours"] for name, world in worlds.items()
        },
    }
    group = "what comparing all calls costs"
    row(group, "noting a repeated call, in one process", noting() * 1e6, "us", most=1.0)
    for work, ways in rows.items():
        times = paired(comm, ways, 10.0)
        if "calls" in work:
            more = times.above("compared", "not compared").times(1e6 / CALLS)
            row(group, work, more, "us", most=1.0, others=times.others)
        else:
            ratio = times.ratio("compared", "not compared")
            row(group, work, ratio, most=1.02, others=times.others)


if __name__ == "__main__":
    main()
