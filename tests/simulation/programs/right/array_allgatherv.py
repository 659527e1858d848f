# expect: ok; ranks=3
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
data = np.zeros(comm.size + 1)
source = np.ones(1 + (comm.rank == 0))
counts = [2] + [1] * (comm.size - 1)
comm.Allgatherv(source, [data, counts])
assert data.sum() == comm.size + 1
