# wrong: displacement_unit, 2 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

numbers = np.zeros(4, "i4")
small = MPI.Win.Create(numbers, comm=comm)
small.Fence()
if rank == 0:
    for position in range(4):
        small.Put(np.full(1, position, "i4"), 1, position)  # named
small.Fence()
small.Free()
window.Free()
