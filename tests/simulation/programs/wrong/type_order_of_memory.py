# expect: memory_order 9
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 0:
    comm.Send(np.zeros((2, 3)), 1)
else:
    comm.Recv(np.zeros((2, 3), order="F"), 0)
