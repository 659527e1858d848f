"""Compare the peak memory of random redistributions with the prediction of their plans, on the rank that needs most.

Run under mpirun: ``mpirun -n 4 python scripts/bench/bench_peak.py [how many, 70] [seed, 0]``. It needs Linux: the peak
is the high-water mark of the resident memory. The pool is off, and freed memory is given back at once.
"""

from __future__ import annotations

import ctypes
import gc
import random
import sys

import numpy as np
from paired import PART, Estimate, row

from spmdsim.arrays import Tensor
from spmdsim.core import Layout, Mesh
from spmdsim.core.tensor import Meta
from spmdsim.redistribution import plan
from spmdsim.worlds import MPIWorld
from spmdsim.worlds.pool import pool

MIB, SHAPE, WITHIN = 1 << 20, (4096, 1024), 0.1
#: mallopt's name for the size from which memory is mapped, and so given back when it is freed.
MAPPED = -3


def random_layout(chance: random.Random, ranks: int, pending: bool) -> Layout:
    """Return a random layout of a matrix on all ranks, with pending sums if ``pending``."""
    ordered_mesh = Mesh((ranks,), ("x",)) if chance.random() < 0.3 else Mesh((2, ranks // 2), ("a", "b"))
    order = chance.sample(range(ranks), ranks) if chance.random() < 0.3 else None
    mesh = ordered_mesh if order is None else Mesh(ordered_mesh.shape, ordered_mesh.axes, ranks=tuple(order))
    entries: tuple[list[str], list[str]] = ([], [])
    partial = []
    for axis in chance.sample(mesh.axes, len(mesh.axes)):
        position = chance.randrange(4 if pending else 3)
        (*entries, [], partial)[position].append(axis)
    return mesh(*(tuple(entry) or None for entry in entries), partial=tuple(partial))


def status(name: str) -> int:
    """Return an entry of the kernel's account of this process, such as ``VmRSS``, in bytes."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name + ":"))


def peak(tensor: Tensor, layout: Layout, libc: ctypes.CDLL) -> int:
    """Return the peak bytes of a redistribution, without the memory of the process except the tensor."""
    tensor.to(layout)  # Create communicators and shared memory, and load code, before the measurement.
    gc.collect()
    libc.malloc_trim(0)
    tensor.world.barrier()
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")
    before = status("VmRSS")
    tensor.to(layout)
    return status("VmHWM") - before + tensor.stored_shards[0].nbytes


def main() -> None:
    """Print predicted and measured peaks of random redistributions."""
    count, seed = (
        int(argument) for argument in (*sys.argv[1:], *("70" if PART else "5", "0")[len(sys.argv) - 1 :])
    )
    pool().limit = 0
    libc = ctypes.CDLL(None)
    libc.mallopt(MAPPED, 128 * 1024)
    chance, world, ratios = random.Random(seed), MPIWorld(), []
    while len(ratios) < count:
        src, dst = random_layout(chance, world.size, True), random_layout(chance, world.size, False)
        dtype = np.dtype(chance.choice(("f4", "i2", "f2")))
        route = plan(src, dst, SHAPE, dtype)
        if not route.steps:
            continue
        meta = Meta.of(src, SHAPE, dtype)
        tensor = Tensor(world, meta, [np.ones(src.local_shape(SHAPE, world.rank), meta.storage_dtype)])
        measured = max(world.gather_objects([peak(tensor, dst, libc)]))
        ratios.append(route.peak_nbytes / measured)
        if world.rank == 0:
            line = f"{ratios[-1]:6.2f}  {route.peak_nbytes / MIB:6.1f}  {measured / MIB:6.1f} MiB"
            names = ", ".join(step.collective for step in route.steps)
            print(f"{line}  {dtype.name:8} {src} -> {dst}: {names}", flush=True)
    near = sum(abs(ratio - 1) <= WITHIN for ratio in ratios)
    estimate = Estimate(float(np.median(ratios)), min(ratios), max(ratios))
    note = f"within {WITHIN:.0%} in {near} of {count}"
    row(
        "peak memory of redistributions, what plans say over what was resident",
        "median, least, most",
        estimate,
        note=note,
    )
    world.close()


if __name__ == "__main__":
    main()
