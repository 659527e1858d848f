# right, 3 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

counter = np.zeros(1)
for _ in range(5):
    window.Lock(0)
    window.Get(counter, 0)
    window.Flush(0)
    counter += 1
    window.Put(counter, 0)
    window.Unlock(0)
comm.Barrier()
assert rank > 0 or memory[0] == 5 * size
window.Free()
