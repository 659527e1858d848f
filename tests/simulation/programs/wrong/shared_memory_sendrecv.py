# expect: exception 8
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
other = 1 - comm.rank
data = np.zeros(4)
comm.Sendrecv(data, other, recvbuf=data, source=other)
