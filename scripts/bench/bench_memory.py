"""Compare the peak memory per rank of a large split matrix with the size of its shards.

Run under mpirun: ``mpirun -n 8 python scripts/bench/bench_memory.py [GiB of the global matrix]``.
"""

from __future__ import annotations

import resource
import sys

import numpy as np
from paired import row

from spmdsim.arrays import Tensor
from spmdsim.core import Mesh
from spmdsim.worlds import MPIWorld

MIB = 1 << 20


def peak() -> float:
    """Return the largest resident memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def numbers(index: tuple[slice, ...]) -> np.ndarray:
    """Return the block at an index of the global matrix with elements row + column / 1000."""
    rows, columns = (np.arange(b.start, b.stop, dtype=np.float32) for b in index)
    return rows[:, None] + columns[None] / 1000


def main() -> None:
    """Print the peak memory of each redistribution of a matrix of the GiB on the command line (2)."""
    gib = float(sys.argv[1]) if len(sys.argv) > 1 else 2.0
    world = MPIWorld()
    n = int((gib * (1 << 30) / 4) ** 0.5) // world.size * world.size
    mesh = Mesh((world.size,), ("x",))
    shard = n * n * 4 / world.size / MIB
    world.barrier()
    before = peak()

    def step(name: str, most: float) -> None:
        """Print the peak so far in shards; ``most`` is its goal."""
        mebibytes = max(world.gather_objects([peak() - before]))
        group = "peak memory of a large matrix, in shards"
        row(
            group,
            f"{name}, {n * n * 4 / (1 << 30):.2f} GiB",
            mebibytes / shard,
            "",
            most=most,
            note=f"{mebibytes:.0f} MiB",
        )

    x = Tensor.from_global(numbers, mesh("x", None), world, shape=(n, n), dtype=np.float32)
    step("from a function, S(0)", 2)  # The result of the function, and its temporary arrays.
    y = x.to(mesh(None, "x"))
    step("S(0) -> S(1)", 3)
    assert np.isclose(y.local()[1, 0], 1 + y.layout.bounds((n, n), world.rank)[1][0] / 1000)
    del x
    z = y.to(mesh("x", None))
    step("S(1) -> S(0)", 3)
    del y, z
    world.close()


if __name__ == "__main__":
    main()
