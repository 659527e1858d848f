# expect: buffer_reused 11
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
other = 1 - comm.rank
data = np.zeros(1)
requests = []
for step in range(3):
    data[0] = step
    requests.append(comm.Isend(data, other, tag=step))
for step in range(3):
    comm.Recv(np.zeros(1), other, tag=step)
MPI.Request.Waitall(requests)
