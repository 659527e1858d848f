# expect: collective_mismatch 6
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
comm.Reduce(np.zeros(2), np.ones(2), root=comm.rank)
