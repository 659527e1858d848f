# expect: ok; ranks=3
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 0:
    data = np.zeros(comm.size)
    requests = [comm.Irecv(data[rank : rank + 1], rank) for rank in range(1, comm.size)]
    while MPI.Request.Waitsome(requests) is not None:
        pass
else:
    comm.Send(np.ones(1), 0)
