# wrong: conflicting_access, 2 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

result = np.zeros(1)
window.Lock_all()
if rank == 0:
    window.Put(np.ones(1), 0)  # named
else:
    window.Get(result, 0)  # named
window.Unlock_all()
window.Free()
