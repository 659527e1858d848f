"""MatMul against hand-written mpi4py and plain numpy, and the overhead of a small operator call.

Run: mpirun -n 2 python scripts/bench/bench_operators.py [--size 4096]
All ways of one strategy run interleaved in one job; the ratio to the hand-written way is what counts.
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
from spmdsim.redistribution.grid import all_bounds
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
    here = world()
    comm, rank, size = here.comm, here.rank, here.size
    mesh = Mesh((size,), ("tp",))
    rng = np.random.default_rng(0)
    whole = rng.random((n, n), dtype=np.float32)
    rows = slice(rank * n // size, (rank + 1) * n // size)
    part = np.ascontiguousarray(whole[rows])
    across = np.ascontiguousarray(whole[:, rows])
    out_rows = np.empty((rows.stop - rows.start, n), np.float32)
    out_columns = np.empty((n, rows.stop - rows.start), np.float32)
    out_whole, reduced = np.empty((n, n), np.float32), np.empty((n, n), np.float32)
    gathered = np.empty((n, n), np.float32)
    counts = [n * n // size] * size

    x = {
        "rows": Tensor.from_global(whole, mesh("tp", None), here),
        "columns": Tensor.from_global(whole, mesh(None, "tp"), here),
        "whole": Tensor.from_global(whole, mesh(None, None), here),
    }

    def by_hand_gather() -> None:
        np.matmul(part, whole, out=out_rows)
        comm.Allgather(out_rows, gathered)

    def by_hand_reduce() -> None:
        np.matmul(across, part, out=out_whole)
        comm.Allreduce(out_whole, reduced)

    def by_hand_scatter() -> None:
        np.matmul(across, part, out=out_whole)
        comm.Reduce_scatter(out_whole, out_rows, counts)

    pairs = {
        "row": (lambda: np.matmul(part, whole, out=out_rows), lambda: ops.matmul(x["rows"], x["whole"])),
        "column": (
            lambda: np.matmul(whole, across, out=out_columns),
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
    """A barrier whose waiting ranks sleep: a spinning one would take a core from what rank 0 measures."""
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(0.02)


def plain_numpy(n: int) -> float:
    """Seconds of one product in a process of its own that may use every core."""
    env = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    # Not a rank of this job: it must not look like one.
    env = {k: v for k, v in env.items() if not k.startswith(("OMPI_", "PMIX_", "PMI_", "PRTE_"))}
    process = subprocess.run(
        [sys.executable, "-c", NUMPY, str(n)], env=env, capture_output=True, text=True, check=True
    )
    return float(process.stdout)


def overhead() -> None:
    """Microseconds of a repeated small call with nothing to communicate, beside numpy's own that gives such an array."""
    here = world() if MPI.COMM_WORLD.Get_size() > 1 else LockStep(1)
    mesh = Mesh((here.size,), ("tp",))
    a = Tensor.from_global(np.ones((8, 8), np.float32), mesh(None, None), here)
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
        others, pairs = Neighbours(), [(repeated(plain), repeated(ours)) for _ in range(5)]
        base, beyond = min(pair[0] for pair in pairs), estimate(ours - plain for plain, ours in pairs)
        note = f"numpy {base:.2f} us, spmdsim {min(pair[1] for pair in pairs):.2f} us"
        group = "a repeated small operator, above numpy's own time"
        row(group, f"8 x 8 {name}", beyond, "us", most=8.0, others=others.cores(), note=note)


def softmax(x: np.ndarray) -> np.ndarray:
    """Of rows, as numpy's users write it."""
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def repeated(call, rounds: int = (400 if PART else 20) if QUICK else 4000) -> float:
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
    """Deriving who holds what on a mesh of a million ranks."""
    mesh = Mesh((64, 128, 128), ("x", "y", "z"))
    layout = mesh("x", ("z", "y"))
    all_bounds(layout, (4096, 4096))
    start = time.perf_counter()
    all_bounds(layout, (1 << 20, 1 << 20))
    everyone = time.perf_counter() - start
    one = repeated(lambda: layout.bounds((1 << 20, 1 << 20), 777_777))
    row("who holds what", f"all of {mesh.size:,} ranks", everyone, "s")
    row("who holds what", f"one of {mesh.size:,} ranks", one, "us")
    line = Mesh((1024, 1024), ("a", "b"))
    step = Step("all_gather", ("b",), line(("a", "b"), None), line("a", None), (1 << 21, 8))
    here, shard = ShapeOnly(line.size), ShapeArray((2, 8), np.dtype("float32"))
    row("a step without data", f"{line.size:,} ranks", repeated(lambda: here.run(step, [shard])), "us")


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
