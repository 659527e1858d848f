# expect: collective_mismatch 7
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
dtype = "f8" if comm.rank == 0 else "i8"
comm.Reduce(np.zeros(4, dtype), np.ones(4, dtype))
