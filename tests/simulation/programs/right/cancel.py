# expect: ok; ranks=3
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
request = comm.Irecv(np.zeros(1), comm.rank)
request.Cancel()
request.Wait()
