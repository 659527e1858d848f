# expect: truncation 9
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 0:
    comm.Send(np.zeros(4), 1)
else:
    comm.Irecv(np.zeros(3), 0).Wait()
