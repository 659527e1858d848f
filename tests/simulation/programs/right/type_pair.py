# expect: ok; ranks=3
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
pairs = np.zeros(2, np.dtype([("value", "f8"), ("index", "i4")], align=True))
best = pairs.copy()
comm.Allreduce([pairs, MPI.DOUBLE_INT], [best, MPI.DOUBLE_INT], op=MPI.MAXLOC)
