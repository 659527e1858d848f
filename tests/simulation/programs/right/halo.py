# expect: ok; ranks=3
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
field = np.zeros(6)
left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
for _ in range(3):
    requests = [comm.Irecv(field[:1], left, tag=1), comm.Irecv(field[-1:], right, tag=2)]
    requests += [comm.Isend(field[-2:-1], right, tag=1), comm.Isend(field[1:2], left, tag=2)]
    MPI.Request.Waitall(requests)
