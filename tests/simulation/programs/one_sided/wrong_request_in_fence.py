# wrong: exception, 2 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

window.Fence()
window.Rput(np.ones(1), rank).Wait()  # named
window.Fence()
window.Free()
