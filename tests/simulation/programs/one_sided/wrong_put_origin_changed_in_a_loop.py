# wrong: buffer_reused, 2 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

data = np.zeros(1)
window.Lock_all()
if rank == 0:
    for position in range(3):
        data[0] = position
        window.Put(data, 1, position)  # named
window.Unlock_all()
window.Free()
