# expect: exception 6
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
comm.Allreduce(np.zeros(2), np.zeros(2, "i8"))
