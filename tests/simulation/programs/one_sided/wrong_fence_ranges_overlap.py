# wrong: conflicting_access, 3 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

window.Fence()
if rank == 1:
    window.Put(np.ones(3), 0, 0)  # named
elif rank == 2:
    window.Put(np.ones(2), 0, 2)  # named
window.Fence()
window.Free()
