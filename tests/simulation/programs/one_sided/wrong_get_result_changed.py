# wrong: buffer_reused, 2 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

result = np.zeros(2)
window.Lock(1, MPI.LOCK_SHARED)
window.Get(result, 1)  # named
result[:] = -1.0
window.Unlock(1)  # named
window.Free()
