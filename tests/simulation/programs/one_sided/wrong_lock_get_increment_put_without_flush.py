# wrong: conflicting_access, 2 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

counter = np.zeros(1)
window.Lock(0)
window.Get(counter, 0)  # named
window.Flush_local(0)
window.Accumulate(np.ones(1), 0, 0)
window.Put(np.ones(1), 0, 0)  # named
window.Unlock(0)
window.Free()
