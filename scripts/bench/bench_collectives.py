"""Each collective of a world against the raw mpi4py call into a kept buffer, side by side in one run.

The world runs it twice: on the raw call's own source, and on a copy that the world made, as tensors have it: where
its arrays lie (huge pages), other ranks read them faster.

Run under mpirun: ``mpirun -n 8 python scripts/bench/bench_collectives.py [largest MiB]``.
"""

from __future__ import annotations

import sys

import numpy as np
from mpi4py import MPI
from paired import QUICK, beside_hand, paired, size_text

from spmdsim.core import Mesh
from spmdsim.core.step import Step
from spmdsim.worlds import MPIWorld

#: Bytes of the global tensor.
SIZES = (1 << 10, 1 << 14, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26)


def cases(world, count):
    """Per collective: the step, this rank's shard of it, and the raw call for the same result."""
    comm, n, mesh = world.comm, world.size, Mesh((world.size,), ("x",))
    whole = np.ones((n, count // n), np.float32)
    row = whole[:1].copy()
    taken, taken_row = np.empty_like(whole), np.empty_like(row)
    shape, split, every = whole.shape, mesh("x", None), mesh(None, None)
    pending = mesh(None, None, partial="x")
    yield (
        "all_reduce",
        Step("all_reduce", ("x",), pending, every, shape, "sum"),
        whole,
        lambda: comm.Allreduce(whole, taken),
    )
    yield (
        "reduce_scatter",
        Step("reduce_scatter", ("x",), pending, split, shape, "sum"),
        whole,
        lambda: comm.Reduce_scatter_block(whole, taken_row),
    )
    yield (
        "all_gather",
        Step("all_gather", ("x",), split, every, shape),
        row,
        lambda: comm.Allgather(row, taken),
    )
    cube = np.ones((n, n, count // n), np.float32)
    mine, received = cube[:, 0].copy(), np.empty((n, count // n), np.float32)
    step = Step("all_to_all", ("x",), mesh(None, "x", None), mesh("x", None, None), cube.shape)
    yield "all_to_all", step, mine.reshape(n, 1, -1), lambda: comm.Alltoall(mine, received)


def main() -> None:
    largest = int(sys.argv[1]) if len(sys.argv) > 1 else 4 if QUICK else 64
    world = MPIWorld()
    for nbytes in (n for n in SIZES if n <= largest << 20):
        for name, step, shard, raw in cases(world, nbytes // 4):
            own = world.empty(shard.shape, shard.dtype)
            own[...] = shard
            ways = {
                "mpi4py": raw,
                "world": lambda step=step, shard=shard: world.run(step, [shard]),
                "own source": lambda step=step, shard=own: world.run(step, [shard]),
            }
            times = paired(MPI.COMM_WORLD, ways)
            case = f"{name}, {size_text(nbytes)}"
            note = f"mpi4py {times['mpi4py'] * 1e6:.1f} us; from the world's own array {times['own source'] * 1e6:.1f}"
            beside_hand("collectives", "mpi4py", case, times, ("world", "mpi4py"), nbytes, note)
    world.close()


if __name__ == "__main__":
    main()
