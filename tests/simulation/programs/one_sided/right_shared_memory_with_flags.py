# right, 3 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

shared = MPI.Win.Allocate_shared(16 if rank == 0 else 0, 8, comm=comm)
buffer, _ = shared.Shared_query(MPI.PROC_NULL)
numbers = np.ndarray(buffer=buffer, dtype="d", shape=(2,))
shared.Lock_all()
if rank == 1:
    numbers[0] = 7.0
    shared.Sync()
    numbers[1] = 1.0
    shared.Sync()
elif rank == 2:
    while numbers[1] == 0.0:
        shared.Sync()
    assert numbers[0] == 7.0
    numbers[0] = 8.0
shared.Unlock_all()
shared.Free()
window.Free()
