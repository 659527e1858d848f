# right, 3 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

left, right = (rank - 1) % size, (rank + 1) % size
for step in range(4):
    memory[1:3] = 10 * rank + step
    window.Fence()
    window.Put(memory[1:2], left, 3)
    window.Put(memory[2:3], right, 0)
    window.Fence()
    assert (memory[0], memory[3]) == (10 * left + step, 10 * right + step)
window.Free()
