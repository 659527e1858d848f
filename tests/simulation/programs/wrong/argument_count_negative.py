# expect: exception 6
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
comm.Send([np.zeros(2), -1, MPI.DOUBLE], 0)
