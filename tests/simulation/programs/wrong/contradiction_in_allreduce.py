# expect: type_contradiction 6
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
comm.Allreduce([np.ones(4, "i8"), 4, MPI.INT], [np.ones(4, "i8"), 4, MPI.INT])
