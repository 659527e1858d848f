# wrong: exception, 2 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

small = MPI.Win.Allocate(8 * (rank + 1), 8, comm=comm)
small.Lock_all()
small.Get(np.zeros(2), 0)  # named
small.Unlock_all()
small.Free()
window.Free()
