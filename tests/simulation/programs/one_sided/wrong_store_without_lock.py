# wrong: conflicting_access, 2 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

if rank == 0:
    memory[0] = 3.0
    comm.Barrier()  # named
else:
    window.Lock(0)
    window.Put(np.ones(1), 0)  # named
    window.Unlock(0)
    comm.Barrier()
window.Free()
