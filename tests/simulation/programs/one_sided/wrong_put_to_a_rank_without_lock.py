# wrong: exception, 3 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

window.Lock(1, MPI.LOCK_SHARED)
window.Put(np.ones(1), 2)  # named
window.Unlock(1)
window.Free()
