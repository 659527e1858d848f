# expect: ok; ranks=3
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
data, source = np.zeros(1), np.ones(comm.size)
comm.Reduce_scatter_block(source, data)
assert data[0] == comm.size
