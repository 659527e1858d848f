# right, 3 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

allocated = MPI.Win.Allocate(16, 8, comm=comm)
numbers = np.frombuffer(allocated.tomemory(), "d")
allocated.Fence()
allocated.Put(np.full(1, 3.0), (rank + 1) % size, 1)
allocated.Fence()
assert numbers.tolist() == [0.0, 3.0]
allocated.Free()
window.Free()
