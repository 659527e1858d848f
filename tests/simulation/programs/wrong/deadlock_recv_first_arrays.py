# expect: deadlock 8
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
other = 1 - comm.rank
data = np.zeros(4)
comm.Recv(data, other)
comm.Send(data, other)
