# wrong: conflicting_access, 2 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

window.Fence()
if rank == 0:
    window.Put(memory[:1], 1, 3)  # named
else:
    window.Put(np.ones(1), 0)  # named
window.Fence()
window.Free()
