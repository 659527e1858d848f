# expect: buffer_reused 8
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
other = 1 - comm.rank
data = np.zeros(4)
request = comm.Irecv(data, other)
data += 1
comm.Send(np.zeros(4), other)
request.Wait()
