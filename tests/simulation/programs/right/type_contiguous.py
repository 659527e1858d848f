# expect: ok; ranks=3
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
triple = MPI.INT.Create_contiguous(3).Commit()
comm.Bcast([np.zeros(6, "i4"), 2, triple])
triple.Free()
