# expect: ok; ranks=3
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
data = np.zeros(comm.size)
comm.Allgather(np.full(1, comm.rank, float), data)
assert data.tolist() == list(range(comm.size))
