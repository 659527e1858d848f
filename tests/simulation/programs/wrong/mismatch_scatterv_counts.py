# expect: collective_mismatch 6
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
comm.Scatterv([np.zeros(4), [3, 1]] if comm.rank == 0 else None, np.zeros(2))
