# right, 3 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

window.Lock_all()
if rank == 1:
    window.Put(np.full(1, 7.0), 0)
    window.Flush(0)
    comm.Recv(np.zeros(1), source=2)
elif rank == 2:
    comm.Ssend(np.zeros(1), 1)
    window.Put(np.full(1, 8.0), 0)
window.Unlock_all()
window.Free()
