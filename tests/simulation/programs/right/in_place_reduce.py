# expect: ok; ranks=3
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
data = np.ones(2)
comm.Reduce(MPI.IN_PLACE if comm.rank == 0 else data, data if comm.rank == 0 else None)
assert comm.rank or data[0] == comm.size
