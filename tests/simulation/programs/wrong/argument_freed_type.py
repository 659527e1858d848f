# expect: exception 8
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
pair = MPI.DOUBLE.Create_contiguous(2).Commit()
pair.Free()
comm.Bcast([np.zeros(2), 1, pair])
