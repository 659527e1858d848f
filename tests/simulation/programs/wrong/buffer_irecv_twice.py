# expect: buffer_reused 8
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
other = 1 - comm.rank
data = np.zeros(1)
requests = [comm.Irecv(data, other, tag=tag) for tag in (1, 2)]
for tag in (1, 2):
    comm.Send(np.full(1, tag, float), other, tag=tag)
MPI.Request.Waitall(requests)
