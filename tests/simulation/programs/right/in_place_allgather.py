# expect: ok; ranks=3
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
data = np.zeros(comm.size)
data[comm.rank] = 1
comm.Allgather(MPI.IN_PLACE, data)
assert data.all()
