"""Add over all ranks in a ring of Send and Recv: reduce_scatter, then all_gather."""

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
right, left = (rank + 1) % size, (rank - 1) % size
chunk = 4
data = np.arange(size * chunk, dtype=np.int64) * (rank + 1)
incoming = np.empty(chunk, dtype=np.int64)


def chunk_of(number: int) -> np.ndarray:
    """Return chunk `number` of this rank's data, modulo the number of ranks."""

    start = number % size * chunk
    return data[start : start + chunk]


def shift(outgoing: np.ndarray) -> None:
    """Send to the right and receive from the left.

    Even ranks send first and odd ranks receive first, so that no rank needs a buffer.
    """
    if rank % 2 == 0:
        comm.Send(outgoing, dest=right)
        comm.Recv(incoming, source=left)
    else:
        comm.Recv(incoming, source=left)
        comm.Send(outgoing, dest=right)


for step in range(size - 1):
    shift(chunk_of(rank - step))
    chunk_of(rank - step - 1)[:] += incoming
for step in range(size - 1):
    shift(chunk_of(rank + 1 - step))
    chunk_of(rank - step)[:] = incoming
expected = np.arange(size * chunk) * (size * (size + 1) // 2)
print(f"rank {rank}: {data.sum()} {np.array_equal(data, expected)}\n", end="")
