# wrong: buffer_reused, 2 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

data = np.ones(1)
window.Fence()
if rank == 0:
    window.Get(data, 1, 0)  # named
    window.Put(data, 1, 1)  # named
window.Fence()
window.Free()
