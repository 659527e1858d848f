# expect: ok; ranks=3
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
data = np.zeros(1)
left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
comm.Sendrecv(np.full(1, comm.rank, float), right, recvbuf=data, source=left)
assert data[0] == left
