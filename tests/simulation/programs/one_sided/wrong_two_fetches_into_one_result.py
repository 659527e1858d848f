# wrong: buffer_reused, 2 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

result = np.zeros(1)
window.Lock(0)
window.Fetch_and_op(np.ones(1), result, 0, 0)  # named
window.Fetch_and_op(np.ones(1), result, 0, 1)  # named
window.Unlock(0)
window.Free()
