"""A sum over all ranks in a ring, written with Send and Recv: reduce_scatter, then all_gather."""

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
right, left = (rank + 1) % size, (rank - 1) % size
chunk = 4
data = np.arange(size * chunk, dtype=np.int64) * (rank + 1)
incoming = np.empty(chunk, dtype=np.int64)


def part(number: int) -> np.ndarray:
    start = number % size * chunk
    return data[start : start + chunk]


def shift(outgoing: np.ndarray) -> None:
    """Even ranks send first, odd ranks receive first: no rank counts on a buffer."""
    if rank % 2 == 0:
        comm.Send(outgoing, dest=right)
        comm.Recv(incoming, source=left)
    else:
        comm.Recv(incoming, source=left)
        comm.Send(outgoing, dest=right)


for step in range(size - 1):
    shift(part(rank - step))
    part(rank - step - 1)[:] += incoming
for step in range(size - 1):
    shift(part(rank + 1 - step))
    part(rank - step)[:] = incoming
expected = np.arange(size * chunk) * (size * (size + 1) // 2)
print(f"rank {rank}: {data.sum()} {np.array_equal(data, expected)}\n", end="")
