# expect: exception 7
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
grid = np.zeros((comm.size, 4))
comm.Scan(grid[0], grid[0])
