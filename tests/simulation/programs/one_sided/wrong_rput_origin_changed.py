# wrong: buffer_reused, 2 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

data = np.ones(1)
window.Lock_all()
if rank == 0:
    request = window.Rput(data, 1)  # named
    data[0] = 4.0
    request.Wait()  # named
window.Unlock_all()
window.Free()
