# expect: type_contradiction 8
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
records = np.zeros(4, [("value", "f8"), ("index", "i4")])
struct = MPI.Datatype.Create_struct([1, 1], [0, 8], [MPI.DOUBLE, MPI.INT]).Commit()
comm.Bcast([records, 2, struct])
struct.Free()
