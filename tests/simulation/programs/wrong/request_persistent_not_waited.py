# expect: not_waited 8
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
other = 1 - comm.rank
request = comm.Send_init(np.zeros(1), other)
request.Start()
comm.Recv(np.zeros(1), other)
