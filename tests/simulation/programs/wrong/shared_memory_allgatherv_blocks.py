# expect: exception 6
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
comm.Allgatherv(np.ones(2), [np.zeros(4), [2, 2], [0, 1]])
