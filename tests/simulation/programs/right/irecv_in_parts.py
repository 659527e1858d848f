# expect: ok; ranks=3
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
data = np.zeros((2, 4))
requests = [comm.Irecv(data[row], (comm.rank + 1 + row) % comm.size, tag=row) for row in range(2)]
for row in range(2):
    comm.Send(np.ones(4), (comm.rank - 1 - row) % comm.size, tag=row)
MPI.Request.Waitall(requests)
assert data.all()
