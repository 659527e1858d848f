# expect: ok; ranks=3
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
comm.Bcast([np.zeros(4), MPI.BYTE])
