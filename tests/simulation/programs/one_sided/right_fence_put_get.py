# right, 3 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

window.Fence()
for target in range(size):
    window.Put(np.full(1, float(rank)), target, rank)
window.Fence()
assert memory[:size].tolist() == [0.0, 1.0, 2.0]
result = np.zeros(1)
window.Get(result, (rank + 1) % size, 0)
window.Fence()
assert result[0] == 0.0
window.Free()
