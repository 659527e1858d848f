"""Conjugate gradients on a 2-D Poisson problem: halos for the operator, one small sum for each scalar product.

mpirun -n 4 python examples/arrays/cg.py       python examples/arrays/cg.py (four ranks in lock step)
"""

import numpy as np

from spmdsim import Mesh, Tensor, ops, record, world
from spmdsim.local import map_overlap

N = 24
w = world(4)
speaks = w.rank == 0
mesh = Mesh((2, 2), ("row", "column"))
grid = mesh("row", "column")


def laplacian(block):
    """Five points of a block with one element of its neighbours on each side."""
    inner = 4 * block[1:-1, 1:-1]
    return inner - block[:-2, 1:-1] - block[2:, 1:-1] - block[1:-1, :-2] - block[1:-1, 2:]


def dot(x, y):
    return ops.sum(x * y).to(mesh())  # added up now, since it is read twice


def solve(b, steps):
    x = Tensor.zeros(b.shape, layout=b.layout)
    residual = direction = b
    before = dot(residual, residual)
    for _ in range(steps):
        image = map_overlap(laplacian, direction, depth=1, boundary="zero")
        alpha = before / dot(direction, image)
        x = x + alpha * direction
        residual = residual - alpha * image
        after = dot(residual, residual)
        direction = residual + after / before * direction
        before = after
    return x, before


source = np.random.default_rng(0).normal(size=(N, N))
b = Tensor.from_global(source, grid)
with record() as trace:
    x, rest = solve(b, steps=100)

line = 2 * np.eye(N) - np.eye(N, k=1) - np.eye(N, k=-1)
matrix = np.kron(line, np.eye(N)) + np.kron(np.eye(N), line)
error = np.abs(x.full().ravel() - np.linalg.solve(matrix, source.ravel())).max()
rest = float(rest.full())
assert error < 1e-9, error
if speaks:
    print(f"cg: 100 steps on {N} x {N}, squared residual below 1e-15: {rest < 1e-15}, as numpy's solve")
    print(f"    {trace.counts()}, {trace.nbytes(0):,} bytes received by rank 0")
