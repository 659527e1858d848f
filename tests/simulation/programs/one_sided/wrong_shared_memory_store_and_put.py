# wrong: conflicting_access, 2 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

shared = MPI.Win.Allocate_shared(16, 8, comm=comm)
buffer, _ = shared.Shared_query(0)
numbers = np.ndarray(buffer=buffer, dtype="d", shape=(2,))
shared.Lock_all()
if rank == 0:
    shared.Put(np.ones(1), 0, 1)  # named
else:
    numbers[1] = 5.0
comm.Barrier()
shared.Unlock_all()
shared.Free()
window.Free()
