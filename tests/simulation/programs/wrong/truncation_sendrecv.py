# expect: truncation 9
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 0:
    comm.Send(np.zeros(4), 1)
else:
    comm.Sendrecv(np.zeros(0), MPI.PROC_NULL, recvbuf=np.zeros(3), source=0)
