# wrong: conflicting_access, 3 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

table = np.zeros((4, 4))
tables = MPI.Win.Create(table, 8, comm=comm)
column = MPI.DOUBLE.Create_vector(4, 1, 4).Commit()
tables.Fence()
if rank == 1:
    tables.Put(np.ones(4), 0, (2, 1, column))  # named
elif rank == 2:
    tables.Put(np.ones(4), 0, (4, 4, MPI.DOUBLE))  # named
tables.Fence()
tables.Free()
window.Free()
column.Free()
