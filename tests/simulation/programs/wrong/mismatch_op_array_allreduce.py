# expect: collective_mismatch 7
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
op = MPI.SUM if comm.rank == 0 else MPI.MAX
comm.Allreduce(np.zeros(2), np.ones(2), op=op)
