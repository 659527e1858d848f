# expect: type_mismatch 9
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 0:
    comm.Send(np.zeros(4, "i4"), 1)
else:
    comm.Recv(np.zeros(4), 0)
