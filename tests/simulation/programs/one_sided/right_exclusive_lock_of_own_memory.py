# right, 3 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

window.Lock(rank)
memory[0] = rank
window.Unlock(rank)
result = np.zeros(1)
target = (rank + 1) % size
window.Lock(target, MPI.LOCK_SHARED)
window.Get(result, target)
window.Unlock(target)
window.Free()
