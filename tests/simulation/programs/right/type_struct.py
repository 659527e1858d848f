# expect: ok; ranks=3
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
records = np.zeros(4, np.dtype([("value", "f8"), ("index", "i4")], align=True))
struct = MPI.Datatype.Create_struct([1, 1], [0, 8], [MPI.DOUBLE, MPI.INT]).Commit()
comm.Bcast([records, 4, struct])
struct.Free()
