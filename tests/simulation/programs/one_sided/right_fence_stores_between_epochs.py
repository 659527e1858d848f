# right, 3 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

for step in range(3):
    memory[0] = rank + step
    window.Fence()
    result = np.zeros(1)
    window.Get(result, (rank + 1) % size)
    window.Fence()
    assert result[0] == (rank + 1) % size + step
window.Free()
