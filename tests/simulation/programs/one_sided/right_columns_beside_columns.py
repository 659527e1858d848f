# right, 3 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

table = np.zeros((4, 3))
tables = MPI.Win.Create(table, 8, comm=comm)
column = MPI.DOUBLE.Create_vector(4, 1, 3).Commit()
tables.Fence()
tables.Put(np.full(4, float(rank)), 0, (rank, 1, column))
tables.Fence()
assert rank > 0 or table[2].tolist() == [0.0, 1.0, 2.0]
tables.Free()
window.Free()
column.Free()
