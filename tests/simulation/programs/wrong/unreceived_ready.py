# expect: ready_send 7
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 0:
    comm.Rsend(np.zeros(1), 1)
else:
    comm.Recv(np.zeros(1), 0)
