"""Multiply matrices on a square grid of ranks. Blocks are gathered along rows and columns of the grid."""

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
side = round(comm.size**0.5)
cart = comm.Create_cart([side, side], periods=[True, True])
if cart != MPI.COMM_NULL:
    row, col = cart.coords
    row_comm, column_comm = cart.Sub([False, True]), cart.Sub([True, False])
    block = 3
    n = side * block
    a = np.arange(n * n, dtype=np.int64).reshape(n, n)
    b = a.T + 1
    own_a = np.ascontiguousarray(a[row * block :, col * block :][:block, :block])
    own_b = np.ascontiguousarray(b[row * block :, col * block :][:block, :block])
    blocks_a = np.empty((side, block, block), dtype=np.int64)
    blocks_b = np.empty((side, block, block), dtype=np.int64)
    row_comm.Allgather(own_a, blocks_a)
    column_comm.Allgather(own_b, blocks_b)
    own_c = sum(blocks_a[k] @ blocks_b[k] for k in range(side))
    c = (a @ b)[row * block :, col * block :][:block, :block]
    total = np.zeros(1, dtype=np.int64)
    cart.Allreduce(np.array([own_c.sum()]), total)
    print(f"block {row},{col}: {np.array_equal(own_c, c)}, sum of all {total[0]}\n", end="")
