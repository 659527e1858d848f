# expect: deadlock 7; ranks=4
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
data = np.zeros(2)
comm.Ssend(data, (comm.rank + 1) % comm.size)
comm.Recv(data, (comm.rank - 1) % comm.size)
