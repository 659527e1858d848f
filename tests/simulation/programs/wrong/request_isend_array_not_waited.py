# expect: not_waited 7
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
other = 1 - comm.rank
request = comm.Isend(np.zeros(2), other)
comm.Recv(np.zeros(2), other)
