# right, 3 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

one, flag = np.ones(1), np.zeros(1)
if rank == 1:
    window.Lock(0)
    window.Put(one, 0)
    window.Unlock(0)
elif rank == 2:
    while flag[0] == 0:
        window.Lock(0, MPI.LOCK_SHARED)
        window.Get(flag, 0)
        window.Unlock(0)
window.Free()
