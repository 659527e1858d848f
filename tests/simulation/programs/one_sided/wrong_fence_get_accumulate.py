# wrong: conflicting_access, 3 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

window.Fence()
result = np.zeros(4)
if rank == 1:
    window.Get(result, 0)  # named
elif rank == 2:
    window.Accumulate(np.ones(1), 0, 3)  # named
window.Fence()
window.Free()
