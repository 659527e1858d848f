# expect: exception 6
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
comm.Bsend(np.zeros(4), 0)
