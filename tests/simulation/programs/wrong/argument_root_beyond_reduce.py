# expect: exception 6
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
comm.Reduce(np.zeros(1), np.ones(1), root=9)
