# expect: ok; ranks=3
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
data = np.ones(comm.size)
if comm.rank == 0:
    comm.Gather(MPI.IN_PLACE, data)
else:
    comm.Gather(np.ones(1), None)
