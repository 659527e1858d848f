# expect: ok; ranks=3
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
data = np.zeros(2)
source = np.arange(2.0 * comm.size)
comm.Scatter(source, data)
assert data[0] == 2 * comm.rank
