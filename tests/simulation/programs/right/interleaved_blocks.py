# expect: ok; ranks=3
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
data = np.zeros(2 * comm.size)
even = [data, ([1] * comm.size, [2 * rank for rank in range(comm.size)])]
comm.Allgatherv(np.ones(1), even)
assert data.sum() == comm.size
