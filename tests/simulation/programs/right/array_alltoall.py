# expect: ok; ranks=3
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
data = np.zeros(comm.size)
source = np.full(comm.size, comm.rank, float)
comm.Alltoall(source, data)
assert data.tolist() == list(range(comm.size))
