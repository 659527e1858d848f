# wrong: conflicting_access, 2 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

shared = MPI.Win.Allocate_shared(8 if rank == 0 else 0, 8, comm=comm)
buffer, _ = shared.Shared_query(0)
numbers = np.ndarray(buffer=buffer, dtype="d", shape=(1,))
numbers[0] = rank + 1.0
comm.Barrier()  # named
shared.Free()
window.Free()
