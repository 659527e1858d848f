# wrong: wrong_assertion, 2 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

if rank == 0:
    window.Lock(0)  # named
    window.Put(np.ones(1), 0)
    comm.send("locked", 1)
    comm.recv(source=1)
    window.Unlock(0)
else:
    comm.recv(source=0)
    comm.isend("seen", 0).wait()
    window.Lock(0, MPI.LOCK_EXCLUSIVE, MPI.MODE_NOCHECK)  # named
    window.Put(np.ones(1), 0, 1)
    window.Unlock(0)
window.Free()
