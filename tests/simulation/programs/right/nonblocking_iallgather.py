# expect: ok; ranks=3
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
data = np.zeros(comm.size)
request = comm.Iallgather(np.full(1, comm.rank, float), data)
request.Wait()
assert data.tolist() == list(range(comm.size))
