# wrong: conflicting_access, 2 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

window.Fence()
result = np.zeros(1)
if rank == 0:
    window.Put(np.ones(1), 1)  # named
    window.Get(result, 1)  # named
window.Fence()
window.Free()
