"""Rank 0 sends ten whole numbers; rank 1 prints numbers that were never sent. Run with 2 ranks."""

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank = comm.Get_rank()

if rank == 0:
    counts = np.arange(0, 100, 10, dtype=np.int32)
    request = comm.Isend(counts, dest=1, tag=10)
    request.Wait()
elif rank == 1:
    measured = np.empty(10, dtype=np.float32)  # the bug: as many bytes, read as something else
    request = comm.Irecv(measured, source=0, tag=10)
    request.Wait()
    print("rank 1 received:", measured.tolist())
