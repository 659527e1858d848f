# right, 3 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

other = MPI.Win.Create(np.zeros(2), 8, comm=comm)
window.Fence()
other.Fence()
window.Put(np.ones(1), (rank + 1) % size, 0)
other.Put(np.ones(1), (rank + 2) % size, 0)
other.Fence()
window.Fence()
other.Free()
window.Free()
