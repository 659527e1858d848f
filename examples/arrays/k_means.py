"""Compute k-means of points split by rows with replicated centres; a step reduces k sums and k counts.

mpirun -n 4 python examples/arrays/k_means.py       python examples/arrays/k_means.py (four ranks in lock step)
"""

import numpy as np

from spmdsim import Mesh, Tensor, matmul, ops, record, world

POINTS, DIMS, K, STEPS = 4001, 3, 5, 10
w = world(4)
speaks = w.rank == 0
mesh = Mesh((4,), ("rows",))

rng = np.random.default_rng(0)
data = rng.normal(size=(POINTS, DIMS)) + 6 * rng.normal(size=(K, DIMS))[rng.integers(K, size=POINTS)]
points = Tensor.from_global(data, mesh("rows", None))
centres = Tensor.from_global(data[:K], mesh(None, None))

with record() as trace:
    for _ in range(STEPS):
        # The nearest centre has the least |c|^2 - 2 p.c, because |p|^2 is equal for all centres.
        distance = ops.sum(centres * centres, 1) - 2.0 * matmul(points, ops.transpose(centres))
        nearest = ops.one_hot(ops.argmin(distance, 1), K, np.float64)
        sums, counts = matmul(ops.transpose(nearest), points), ops.sum(nearest, 0)
        centres = sums.to(mesh(None, None)) / ops.reshape(counts, (K, 1))

expected = data[:K]
for _ in range(STEPS):
    labels = ((data[:, None] - expected) ** 2).sum(-1).argmin(1)
    expected = np.stack([data[labels == k].mean(0) for k in range(K)])
error = np.abs(centres.full() - expected).max()
assert error < 1e-12, error
if speaks:
    print(f"k-means: {STEPS} steps on {POINTS} points, centres as numpy's")
    print(f"    {trace.counts()}, {trace.nbytes(0) // STEPS:,} bytes per step received by rank 0")
