# expect: ok; ranks=3
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
data = np.full(3, comm.rank)
request = comm.Ibcast(data, root=1)
request.Wait()
assert data.tolist() == [1, 1, 1]
