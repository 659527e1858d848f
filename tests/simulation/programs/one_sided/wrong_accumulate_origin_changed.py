# wrong: buffer_reused, 2 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

data = np.ones(4)
window.Lock(0, MPI.LOCK_SHARED)
window.Accumulate(data, 0)  # named
data *= 2.0
window.Flush(0)  # named
window.Unlock(0)
window.Free()
