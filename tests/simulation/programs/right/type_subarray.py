# expect: ok; ranks=3
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
box = MPI.FLOAT.Create_subarray([4, 4], [2, 2], [1, 1]).Commit()
comm.Bcast([np.zeros((4, 4), "f4"), 1, box])
box.Free()
