# expect: deadlock 10
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
data = np.zeros(3)
if comm.rank == 0:
    comm.Ssend(data, 1, tag=7)
else:
    comm.Recv(data, 0, tag=8)
