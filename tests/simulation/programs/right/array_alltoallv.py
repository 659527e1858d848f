# expect: ok; ranks=3
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
data, source = np.zeros(comm.size), np.ones(comm.size)
counts = [1] * comm.size
comm.Alltoallv([source, counts], [data, counts])
assert data.all()
