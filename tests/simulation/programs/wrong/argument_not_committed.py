# expect: exception 6
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
comm.Bcast([np.zeros(2), 1, MPI.DOUBLE.Create_contiguous(2)])
