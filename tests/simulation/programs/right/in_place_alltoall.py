# expect: ok; ranks=3
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
data = np.arange(float(comm.size)) + 10 * comm.rank
comm.Alltoall(MPI.IN_PLACE, data)
assert data[0] == comm.rank
