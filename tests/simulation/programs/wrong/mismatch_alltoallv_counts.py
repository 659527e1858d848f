# expect: collective_mismatch 6
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
comm.Alltoallv([np.zeros(4), [2, 2]], [np.zeros(6), [3, 3]])
