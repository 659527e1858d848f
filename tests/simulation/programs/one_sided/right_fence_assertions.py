# right, 3 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

memory[:] = rank
window.Fence(MPI.MODE_NOPRECEDE)
result = np.zeros(4)
window.Get(result, (rank + 1) % size)
window.Fence(MPI.MODE_NOSTORE | MPI.MODE_NOPUT | MPI.MODE_NOSUCCEED)
assert result[0] == (rank + 1) % size
window.Free()
