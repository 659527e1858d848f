# expect: collective_mismatch 6
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
comm.Gatherv(np.zeros(3), [np.zeros(4), [2, 2]] if comm.rank == 0 else None)
