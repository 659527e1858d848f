# right, 3 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

one = MPI.Win.Create(memory if rank == 0 else None, 8, comm=comm)
one.Lock(0)
one.Accumulate(np.ones(1), 0)
one.Unlock(0)
comm.Barrier()
assert rank > 0 or memory[0] == size
one.Free()
window.Free()
