# expect: exception 6
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
comm.Allreduce(np.zeros(2, "f8,i4"), np.ones(2, "f8,i4"))
