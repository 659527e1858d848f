# expect: ok; ranks=3
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
data = np.ones(2)
comm.Allreduce(MPI.IN_PLACE, data)
assert data[0] == comm.size
