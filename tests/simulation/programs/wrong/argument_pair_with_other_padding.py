# expect: exception 6
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
comm.Bcast([np.zeros(3, "f8,i4"), MPI.DOUBLE_INT])
