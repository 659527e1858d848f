"""A manager hands out pieces of an array and adds the partial sums; it never gets one. Run with 4 ranks."""

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
length = 16

if rank == 0:
    numbers = np.arange(float(length * size))
    for worker in range(1, size):
        comm.Send(numbers[worker * length : (worker + 1) * length], dest=worker)
    partial = float(numbers[:length].sum())
    total = partial  # the bug: the manager has a partial sum too, but does not take part in the reduce
    print("sum:", total)
else:
    piece = np.empty(length)
    comm.Recv(piece, source=0)
    partial = float(piece.sum())
    comm.reduce(partial, op=MPI.SUM, root=0)
