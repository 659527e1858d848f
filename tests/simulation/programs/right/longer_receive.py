# expect: ok; ranks=3
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 0:
    comm.Send(np.zeros(2), 1)
elif comm.rank == 1:
    comm.Recv(np.zeros(9), 0)
