# expect: ok; ranks=3
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
data = np.full(3, comm.rank)
comm.Bcast(data, root=1)
assert data.tolist() == [1, 1, 1]
