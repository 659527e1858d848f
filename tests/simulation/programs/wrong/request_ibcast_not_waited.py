# expect: not_waited 6
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
request = comm.Ibcast(np.zeros(2))
comm.Barrier()
