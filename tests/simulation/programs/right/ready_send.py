# expect: ok; ranks=3
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 1:
    request = comm.Irecv(np.zeros(1), 0)
    comm.Barrier()
    request.Wait()
else:
    comm.Barrier()
    if comm.rank == 0:
        comm.Rsend(np.ones(1), 1)
