# expect: ok; ranks=3
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
data = np.full(1, comm.rank)
left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
comm.Sendrecv_replace(data, right, source=left)
assert data[0] == left
