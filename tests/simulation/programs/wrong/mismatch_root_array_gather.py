# expect: collective_mismatch 6
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
comm.Gather(np.zeros(2), np.zeros(4), root=comm.rank)
