"""Solve a 2-D Poisson problem by conjugate gradients: halos for the operator, a small sum per scalar product.

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
    """Apply the five-point operator to a block with one element of its neighbours on each side."""
    inner = 4 * block[1:-1, 1:-1]
    return inner - block[:-2, 1:-1] - block[2:, 1:-1] - block[1:-1, :-2] - block[1:-1, 2:]


def dot(x, y):
    """Return the scalar product, reduced at once because it is used twice."""
    return ops.sum(x * y).to(mesh())


def solve(b, steps):
    """Return the solution after some steps, and the squared norm of its residual."""
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
    x, squared_residual = solve(b, steps=100)

line = 2 * np.eye(N) - np.eye(N, k=1) - np.eye(N, k=-1)
matrix = np.kron(line, np.eye(N)) + np.kron(np.eye(N), line)
error = np.abs(x.full().ravel() - np.linalg.solve(matrix, source.ravel())).max()
squared_residual = float(squared_residual.full())
assert error < 1e-9, error
if speaks:
    print(
        f"cg: 100 steps on {N} x {N}, squared residual below 1e-15: {squared_residual < 1e-15}, as numpy's solve"
    )
    print(f"    {trace.counts()}, {trace.nbytes(0):,} bytes received by rank 0")
