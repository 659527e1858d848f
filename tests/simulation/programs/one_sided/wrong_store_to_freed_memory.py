# wrong: use_after_free, 2 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

allocated = MPI.Win.Allocate(16, 8, comm=comm)
numbers = np.frombuffer(allocated.tomemory(), "d")
numbers[0] = 1.0
allocated.Free()  # named
numbers[1] = 2.0
window.Free()
