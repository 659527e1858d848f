# expect: type_contradiction 7
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
column = MPI.FLOAT.Create_vector(2, 1, 2).Commit()
comm.Bcast([np.zeros((2, 2)), 1, column])
column.Free()
