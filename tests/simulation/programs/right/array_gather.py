# expect: ok; ranks=3
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
data = np.zeros((comm.size, 2))
comm.Gather(np.full(2, comm.rank, float), data)
assert comm.rank or data[:, 0].tolist() == list(range(comm.size))
