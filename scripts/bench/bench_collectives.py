"""Compare each collective of a world with the raw mpi4py call into a reused buffer, interleaved in one run.

The world runs it twice: on the source of the raw call, and on a copy in an array of the world, as tensors have it.
Other ranks read these arrays faster, because they are on huge pages.

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
    """Yield per collective its name, the step, this rank's shard, and the raw call with an equal result.

    ``count`` is the number of float32 elements of the global tensor.
    """
    comm, n, mesh = world.comm, world.size, Mesh((world.size,), ("x",))
    full_array = np.ones((n, count // n), np.float32)
    row = full_array[:1].copy()
    taken, taken_row = np.empty_like(full_array), np.empty_like(row)
    shape, split, every = full_array.shape, mesh("x", None), mesh(None, None)
    pending = mesh(None, None, partial="x")
    yield (
        "all_reduce",
        Step("all_reduce", ("x",), pending, every, shape, "sum"),
        full_array,
        lambda: comm.Allreduce(full_array, taken),
    )
    yield (
        "reduce_scatter",
        Step("reduce_scatter", ("x",), pending, split, shape, "sum"),
        full_array,
        lambda: comm.Reduce_scatter_block(full_array, taken_row),
    )
    yield (
        "all_gather",
        Step("all_gather", ("x",), split, every, shape),
        row,
        lambda: comm.Allgather(row, taken),
    )
    cube = np.ones((n, n, count // n), np.float32)
    own_block, received = cube[:, 0].copy(), np.empty((n, count // n), np.float32)
    step = Step("all_to_all", ("x",), mesh(None, "x", None), mesh("x", None, None), cube.shape)
    yield "all_to_all", step, own_block.reshape(n, 1, -1), lambda: comm.Alltoall(own_block, received)


def main() -> None:
    """Print a row per collective and size."""
    largest = int(sys.argv[1]) if len(sys.argv) > 1 else 4 if QUICK else 64
    world = MPIWorld()
    for nbytes in (n for n in SIZES if n <= largest << 20):
        for name, step, shard, raw in cases(world, nbytes // 4):
            world_copy = world.empty(shard.shape, shard.dtype)
            world_copy[...] = shard
            alternatives = {
                "mpi4py": raw,
                "world": lambda step=step, shard=shard: world.run(step, [shard]),
                "own source": lambda step=step, shard=world_copy: world.run(step, [shard]),
            }
            times = paired(MPI.COMM_WORLD, alternatives)
            case = f"{name}, {size_text(nbytes)}"
            note = f"mpi4py {times['mpi4py'] * 1e6:.1f} us; from the world's own array {times['own source'] * 1e6:.1f}"
            beside_hand("collectives", "mpi4py", case, times, ("world", "mpi4py"), nbytes, note)
    world.close()


if __name__ == "__main__":
    main()
