# expect: buffer_reused 7
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
data, total = np.ones(4), np.zeros(4)
request = comm.Iallreduce(data, total)
data += 1
request.Wait()
