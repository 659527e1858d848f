# expect: ok; ranks=3
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
picked = MPI.DOUBLE.Create_indexed([1, 2], [0, 3]).Commit()
comm.Bcast([np.zeros(5), 1, picked])
picked.Free()
