# expect: collective_mismatch 6
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
comm.Scatter(np.zeros(4), np.zeros(2), root=comm.rank)
