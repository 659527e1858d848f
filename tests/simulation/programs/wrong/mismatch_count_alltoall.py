# expect: collective_mismatch 7
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
count = 3 + comm.rank
comm.Alltoall(np.zeros(2 * count), np.ones(2 * count))
