"""Compare MatMul with hand-written mpi4py and plain numpy, and time the overhead of a small operator call.

Run: mpirun -n 2 python scripts/bench/bench_operators.py [--size 4096]
All alternatives of a strategy run interleaved in one job. Only the ratio to the time of the hand-written one counts.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from mpi4py import MPI
from paired import PART, QUICK, Neighbours, estimate, paired, row

import spmdsim.ops as ops
from spmdsim import LockStep, Mesh, Tensor, world
from spmdsim.core.step import Step
from spmdsim.redistribution.grid import split_bounds
from spmdsim.worlds import ShapeArray, ShapeOnly

NUMPY = """
import sys, time, numpy as np
n = int(sys.argv[1])
rng = np.random.default_rng(0)
a, b = (rng.random((n, n), dtype=np.float32) for _ in range(2))
c = np.empty_like(a)
times = []
for _ in range(6):
    start = time.perf_counter()
    np.matmul(a, b, out=c)
    times.append(time.perf_counter() - start)
print(sorted(times)[len(times) // 2])
"""


def strategies(n: int) -> None:
    """Print a row per strategy of a product of n x n float32, compared with mpi4py and numpy by hand."""
    mpi_world = world()
    comm, rank, size = mpi_world.comm, mpi_world.rank, mpi_world.size
    mesh = Mesh((size,), ("tp",))
    rng = np.random.default_rng(0)
    full_array = rng.random((n, n), dtype=np.float32)
    rows = slice(rank * n // size, (rank + 1) * n // size)
    block = np.ascontiguousarray(full_array[rows])
    across = np.ascontiguousarray(full_array[:, rows])
    out_rows = np.empty((rows.stop - rows.start, n), np.float32)
    out_columns = np.empty((n, rows.stop - rows.start), np.float32)
    out_whole, reduced = np.empty((n, n), np.float32), np.empty((n, n), np.float32)
    gathered = np.empty((n, n), np.float32)
    counts = [n * n // size] * size

    x = {
        "rows": Tensor.from_global(full_array, mesh("tp", None), mpi_world),
        "columns": Tensor.from_global(full_array, mesh(None, "tp"), mpi_world),
        "whole": Tensor.from_global(full_array, mesh(None, None), mpi_world),
    }

    def by_hand_gather() -> None:
        np.matmul(block, full_array, out=out_rows)
        comm.Allgather(out_rows, gathered)

    def by_hand_reduce() -> None:
        np.matmul(across, block, out=out_whole)
        comm.Allreduce(out_whole, reduced)

    def by_hand_scatter() -> None:
        np.matmul(across, block, out=out_whole)
        comm.Reduce_scatter(out_whole, out_rows, counts)

    pairs = {
        "row": (
            lambda: np.matmul(block, full_array, out=out_rows),
            lambda: ops.matmul(x["rows"], x["whole"]),
        ),
        "column": (
            lambda: np.matmul(full_array, across, out=out_columns),
            lambda: ops.matmul(x["whole"], x["columns"]),
        ),
        "row, gathered": (by_hand_gather, lambda: ops.matmul(x["rows"], x["whole"]).to(mesh(None, None))),
        "contraction, all_reduce": (
            by_hand_reduce,
            lambda: ops.matmul(x["columns"], x["rows"]).to(mesh(None, None)),
        ),
        "contraction, reduce_scatter": (
            by_hand_scatter,
            lambda: ops.matmul(x["columns"], x["rows"]).to(mesh("tp", None)),
        ),
    }
    single = plain_numpy(n) if rank == 0 else 0.0
    quiet_barrier(comm)
    for name, (hand, ours) in pairs.items():
        times = paired(comm, {"hand": hand, "ours": ours}, seconds=6.0)
        note = f"by hand {times['hand'] * 1e3:.1f} ms; numpy alone on all cores {single * 1e3:.1f}"
        ratio = times.ratio("ours", "hand")
        row("matmul, of hand-written", f"{name}, {n} x {n}", ratio, most=1.03, others=times.others, note=note)


def quiet_barrier(comm) -> None:
    """Wait for all ranks without using a core, which rank 0 may need for its measurement."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(0.02)


def plain_numpy(n: int) -> float:
    """Return the seconds of a product of n x n float32 in its own process, which may use every core."""
    env = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    # Remove the launcher's variables, because the process is no rank of this job.
    env = {k: v for k, v in env.items() if not k.startswith(("OMPI_", "PMIX_", "PMI_", "PRTE_"))}
    process = subprocess.run(
        [sys.executable, "-c", NUMPY, str(n)], env=env, capture_output=True, text=True, check=True
    )
    return float(process.stdout)


def overhead() -> None:
    """Print the microseconds that small operators without communication take more than numpy's functions."""
    mpi_world = world() if MPI.COMM_WORLD.Get_size() > 1 else LockStep(1)
    mesh = Mesh((mpi_world.size,), ("tp",))
    a = Tensor.from_global(np.ones((8, 8), np.float32), mesh(None, None), mpi_world)
    local = a.shards[0]
    calls = {
        "add": (lambda: local + local, lambda: ops.add(a, a)),
        "matmul": (lambda: local @ local, lambda: ops.matmul(a, a)),
        "times a number": (lambda: local * 2, lambda: a * 2),
        "greater than a number": (lambda: local > 0, lambda: a > 0),
        "relu": (lambda: np.maximum(local, 0), lambda: ops.relu(a)),
        "exp": (lambda: np.exp(local), lambda: ops.exp(a)),
        "sum": (local.sum, a.sum),
        "mean": (local.mean, a.mean),
        "max": (local.max, a.max),
        "softmax": (lambda: softmax(local), lambda: ops.softmax(a)),
        "reshape": (lambda: local.reshape(4, 16), lambda: a.reshape(4, 16)),
        "transpose": (lambda: np.ascontiguousarray(local.T), lambda: a.T),
        "rows": (lambda: local[1:3].copy(), lambda: a[1:3]),
    }
    for name, (plain, ours) in calls.items():
        others, pairs = Neighbours(), [(measure_repeated(plain), measure_repeated(ours)) for _ in range(5)]
        base, beyond = min(pair[0] for pair in pairs), estimate(ours - plain for plain, ours in pairs)
        note = f"numpy {base:.2f} us, spmdsim {min(pair[1] for pair in pairs):.2f} us"
        group = "a repeated small operator, above numpy's own time"
        row(group, f"8 x 8 {name}", beyond, "us", most=8.0, others=others.cores(), note=note)


def softmax(x: np.ndarray) -> np.ndarray:
    """Return the softmax of rows, as users of numpy write it."""
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def measure_repeated(call, rounds: int = (400 if PART else 20) if QUICK else 4000) -> float:
    """Return the microseconds of a call, the best of five series of ``rounds / 5`` calls."""
    for _ in range(rounds // 4):
        call()
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(rounds // 5):
            call()
        best = min(best, (time.perf_counter() - start) / (rounds // 5))
    return best * 1e6


def slices() -> None:
    """Print the time to compute the bounds of shards on a mesh of a million ranks."""
    mesh = Mesh((64, 128, 128), ("x", "y", "z"))
    layout = mesh("x", ("z", "y"))
    split_bounds(mesh, layout.dims, (4096, 4096))
    start = time.perf_counter()
    split_bounds(mesh, layout.dims, (1 << 20, 1 << 20))
    everyone = time.perf_counter() - start
    microseconds = measure_repeated(lambda: layout.bounds((1 << 20, 1 << 20), 777_777))
    row("who holds what", f"all of {mesh.size:,} ranks", everyone, "s")
    row("who holds what", f"one of {mesh.size:,} ranks", microseconds, "us")
    line = Mesh((1024, 1024), ("a", "b"))
    step = Step("all_gather", ("b",), line(("a", "b"), None), line("a", None), (1 << 21, 8))
    world, shard = ShapeOnly(line.size), ShapeArray((2, 8), np.dtype("float32"))
    row(
        "a step without data",
        f"{line.size:,} ranks",
        measure_repeated(lambda: world.run(step, [shard])),
        "us",
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, nargs="+", default=[256] if QUICK else [1024, 4096])
    args = parser.parse_args()
    if MPI.COMM_WORLD.Get_size() > 1:
        for size in args.size:
            strategies(size)
    overhead()
    if MPI.COMM_WORLD.Get_size() == 1:
        slices()
