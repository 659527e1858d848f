# wrong: conflicting_access, 2 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

numbers = np.zeros(2, "i4")
locks = MPI.Win.Create(numbers, 4, comm=comm)
one, zero, old = np.ones(1, "i4"), np.zeros(1, "i4"), np.ones(1, "i4")
locks.Lock_all()
while old[0] != 0:
    locks.Compare_and_swap(one, zero, old, 0)  # named
    locks.Flush(0)
locks.Put(zero, 0)  # named
locks.Unlock_all()
locks.Free()
window.Free()
