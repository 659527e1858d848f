"""Heat on a 2-D grid: each rank swaps the edges of its block with its neighbours; columns by a vector type."""

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
dims = MPI.Compute_dims(comm.size, 2)
cart = comm.Create_cart(dims, periods=[False, True])
rows, columns = 4, 6
here = cart.Get_coords(cart.rank)
block = np.zeros((rows + 2, columns + 2))
block[1:-1, 1:-1] = 1000 * here[0] + 100 * here[1] + np.arange(rows * columns).reshape(rows, columns)
column = MPI.DOUBLE.Create_vector(rows, 1, columns + 2)
column.Commit()
up, down = cart.Shift(0, 1)
left, right = cart.Shift(1, 1)


def place(row: int, col: int) -> np.ndarray:
    return block.reshape(-1)[row * (columns + 2) + col :]


for _ in range(3):
    requests = [
        cart.Irecv(block[0, 1:-1], source=up, tag=1),
        cart.Irecv(block[-1, 1:-1], source=down, tag=2),
        cart.Isend(block[1, 1:-1], dest=up, tag=2),
        cart.Isend(block[-2, 1:-1], dest=down, tag=1),
    ]
    MPI.Request.Waitall(requests)
    cart.Sendrecv([place(1, columns), 1, column], right, 3, [place(1, 0), 1, column], left, 3)
    cart.Sendrecv([place(1, 1), 1, column], left, 4, [place(1, columns + 1), 1, column], right, 4)
    inner = block[1:-1, 1:-1]
    around = block[:-2, 1:-1] + block[2:, 1:-1] + block[1:-1, :-2] + block[1:-1, 2:]
    inner[...] = np.floor((inner + around) / 5)
column.Free()
heat = cart.allreduce(int(block[1:-1, 1:-1].sum()))
print(f"{here} holds {int(block[1:-1, 1:-1].sum())} of {heat}\n", end="")
