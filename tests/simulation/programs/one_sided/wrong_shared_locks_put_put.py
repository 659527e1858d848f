# wrong: conflicting_access, 2 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

window.Lock(0, MPI.LOCK_SHARED)
window.Put(np.full(1, float(rank)), 0)  # named
window.Unlock(0)
window.Free()
