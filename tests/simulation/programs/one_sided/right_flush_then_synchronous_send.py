# right, 3 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

window.Lock_all()
result = np.zeros(1)
if rank == 1:
    comm.Recv(np.zeros(1), source=2)
    window.Put(np.full(1, 7.0), 0)
elif rank == 2:
    window.Get(result, 0)
    window.Flush(0)
    comm.Ssend(np.zeros(1), 1)
window.Unlock_all()
window.Free()
