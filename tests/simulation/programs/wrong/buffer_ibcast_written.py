# expect: buffer_reused 7
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
data = np.zeros(4)
request = comm.Ibcast(data)
data[0] = comm.rank + 1
request.Wait()
