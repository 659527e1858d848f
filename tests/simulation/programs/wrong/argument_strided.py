# expect: exception 6
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
comm.Bcast(np.zeros((4, 4))[:, 1])
