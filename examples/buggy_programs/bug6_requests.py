"""Neighbours swap values with nonblocking calls; a request gets lost on the way. Run with 4 ranks."""

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
partner = rank ^ 1
own_value = np.array([float(rank)])
theirs = np.zeros(1)

if rank < 2:
    requests = [comm.Irecv(theirs, source=partner), comm.Isend(own_value, dest=partner)]
    MPI.Request.Waitall(requests)
else:
    request = comm.Irecv(theirs, source=partner)
    request = comm.Isend(own_value, dest=partner)  # the bug: the receive's request is overwritten
    request.Wait()

print(f"rank {rank} has {theirs[0]} from rank {partner}")
