# right, 3 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

window.Lock_all()
window.Put(np.full(1, float(rank)), (rank + 1) % size)
window.Flush_all()
comm.Barrier()
result = np.zeros(1)
window.Get(result, rank)
window.Flush_local(rank)
assert result[0] == (rank - 1) % size
comm.Barrier()
window.Unlock_all()
window.Free()
