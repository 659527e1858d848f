# wrong: conflicting_access, 3 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

window.Lock_all()
result = np.zeros(1)
if rank == 1:
    window.Put(np.ones(1), 0)  # named
    window.Flush_local(0)
    comm.send("written", 2)
elif rank == 2:
    comm.recv(source=1)
    window.Get(result, 0)  # named
window.Unlock_all()
window.Free()
