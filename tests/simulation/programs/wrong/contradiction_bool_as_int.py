# expect: type_contradiction 6
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
comm.Bcast([np.zeros(8, "bool"), 2, MPI.INT])
