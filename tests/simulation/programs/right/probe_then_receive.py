# expect: ok; ranks=3
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 0:
    status = MPI.Status()
    for _ in range(comm.size - 1):
        comm.Probe(status=status)
        data = np.zeros(status.Get_count(MPI.DOUBLE))
        comm.Recv(data, status.source)
else:
    comm.Send(np.zeros(comm.rank), 0)
