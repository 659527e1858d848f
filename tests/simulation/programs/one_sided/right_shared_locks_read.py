# right, 3 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

memory[:] = rank
comm.Barrier()
result = np.zeros(4)
window.Lock(0, MPI.LOCK_SHARED)
window.Get(result, 0)
window.Unlock(0)
assert result[0] == 0.0
window.Free()
