"""Compute heat on a 2-D grid. Ranks swap the edges of their blocks; columns are a vector type."""

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
dims = MPI.Compute_dims(comm.size, 2)
cart = comm.Create_cart(dims, periods=[False, True])
rows, columns = 4, 6
coords = cart.Get_coords(cart.rank)
block = np.zeros((rows + 2, columns + 2))
block[1:-1, 1:-1] = 1000 * coords[0] + 100 * coords[1] + np.arange(rows * columns).reshape(rows, columns)
column = MPI.DOUBLE.Create_vector(rows, 1, columns + 2)
column.Commit()
up, down = cart.Shift(0, 1)
left, right = cart.Shift(1, 1)


def block_from(row: int, col: int) -> np.ndarray:
    """Return the flattened block from element (row, col) on."""

    return block.reshape(-1)[row * (columns + 2) + col :]


for _ in range(3):
    requests = [
        cart.Irecv(block[0, 1:-1], source=up, tag=1),
        cart.Irecv(block[-1, 1:-1], source=down, tag=2),
        cart.Isend(block[1, 1:-1], dest=up, tag=2),
        cart.Isend(block[-2, 1:-1], dest=down, tag=1),
    ]
    MPI.Request.Waitall(requests)
    cart.Sendrecv([block_from(1, columns), 1, column], right, 3, [block_from(1, 0), 1, column], left, 3)
    cart.Sendrecv([block_from(1, 1), 1, column], left, 4, [block_from(1, columns + 1), 1, column], right, 4)
    inner = block[1:-1, 1:-1]
    neighbour_sum = block[:-2, 1:-1] + block[2:, 1:-1] + block[1:-1, :-2] + block[1:-1, 2:]
    inner[...] = np.floor((inner + neighbour_sum) / 5)
column.Free()
heat = cart.allreduce(int(block[1:-1, 1:-1].sum()))
print(f"{coords} holds {int(block[1:-1, 1:-1].sum())} of {heat}\n", end="")
