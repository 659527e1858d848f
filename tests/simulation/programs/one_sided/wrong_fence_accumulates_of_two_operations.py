# wrong: conflicting_access, 3 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

window.Fence()
if rank == 1:
    window.Accumulate(np.full(1, 2.0), 0, op=MPI.SUM)  # named
elif rank == 2:
    window.Accumulate(np.full(1, 3.0), 0, op=MPI.PROD)  # named
window.Fence()
window.Free()
