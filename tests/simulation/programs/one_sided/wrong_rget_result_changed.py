# wrong: buffer_reused, 2 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

result = np.zeros(1)
window.Lock_all()
request = window.Rget(result, 0)  # named
result[0] = 9.0
request.Wait()  # named
window.Unlock_all()
window.Free()
