# wrong: type_mismatch, 2 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

window.Fence()
if rank == 0:
    window.Put(np.ones(2), 1, (0, 4, MPI.INT))  # named
window.Fence()
window.Free()
