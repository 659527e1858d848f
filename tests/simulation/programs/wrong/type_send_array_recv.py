# expect: type_mismatch 9
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 0:
    comm.Send(np.zeros(1), 1)
else:
    comm.recv(source=0)
