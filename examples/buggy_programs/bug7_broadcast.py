"""The root tells everybody a number; most ranks never come out of it. Run with 4 ranks."""

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank = comm.Get_rank()
count = rank  # the bug: the count must be the same everywhere, here it is the rank
numbers = np.full(8, 23 if rank == 0 else -1)

comm.Bcast([numbers, count, MPI.LONG], root=0)
print(f"rank {rank} has {numbers[0]}")
