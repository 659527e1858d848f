# right, 3 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

shared = MPI.Win.Allocate_shared(8 * size if rank == 0 else 0, 8, comm=comm)
buffer, unit = shared.Shared_query(0)
numbers = np.ndarray(buffer=buffer, dtype="d", shape=(size,))
numbers[rank] = rank + 1
comm.Barrier()
assert numbers.tolist() == [1.0, 2.0, 3.0] and unit == 8
comm.Barrier()
if rank == 1:
    numbers[:] = 0
comm.Barrier()
assert numbers.sum() == 0
shared.Free()
window.Free()
