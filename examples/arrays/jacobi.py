"""Run Jacobi's iteration with numpy's slices: slices of a split field exchange rows and columns with their neighbours.

mpirun -n 4 python examples/arrays/jacobi.py       python examples/arrays/jacobi.py (four ranks in lock step)
"""

import numpy as np

from spmdsim import Mesh, Tensor, ops, record, world

N, STEPS = 64, 50
w = world(4)
speaks = w.rank == 0
mesh = Mesh((2, 2), ("row", "column"))


def step(u):
    """Return the mean of the four neighbours of each inner element."""
    return (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]) / 4


edge = np.zeros((N, N))
edge[0], edge[-1] = 1.0, -1.0  # a warm wall and a cold one

u = walls = Tensor.from_global(edge, mesh("row", "column"))
with record() as trace:
    for _ in range(STEPS):
        u = walls + ops.pad(step(u), (1, 1), (1, 1))

expected = edge
for _ in range(STEPS):
    expected = edge + np.pad(step(expected), 1)
np.testing.assert_array_equal(u.full(), expected)
assert u.layout == walls.layout  # nothing was gathered
if speaks:
    print(f"jacobi: {STEPS} steps on {N} x {N}, the same bits as numpy")
    print(f"    {trace.counts()}, {trace.nbytes(0) // STEPS:,} bytes per step received by rank 0")
    print(f"    its block has {8 * N * N // 4:,} bytes, the whole field {8 * N * N:,}")
