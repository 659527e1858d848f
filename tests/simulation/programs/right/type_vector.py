# expect: ok; ranks=3
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
column = MPI.DOUBLE.Create_vector(3, 1, 3).Commit()
data = np.zeros((3, 3))
comm.Bcast([data, 1, column])
column.Free()
