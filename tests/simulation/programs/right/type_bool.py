# expect: ok; ranks=3
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
comm.Allreduce(np.ones(3, bool), np.zeros(3, bool), op=MPI.LAND)
