# right, 3 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

window.Fence()
window.Put(np.ones(1), MPI.PROC_NULL)
window.Get(None, MPI.PROC_NULL)
window.Accumulate(None, MPI.PROC_NULL)
window.Fence()
window.Free()
