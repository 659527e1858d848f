# expect: not_freed 8
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
data = np.zeros(8)
for step in range(1, 9):
    block = MPI.DOUBLE.Create_contiguous(step).Commit()
    comm.Bcast([data, 1, block])
