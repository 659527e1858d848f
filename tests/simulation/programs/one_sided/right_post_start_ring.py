# right, 3 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

group = comm.Get_group()
right = (rank + 1) % size
for step in range(3):
    window.Post(group.Incl([(rank - 1) % size]))
    window.Start(group.Incl([right]))
    window.Put(np.full(1, float(step)), right)
    window.Complete()
    window.Wait()
    assert memory[0] == step
    memory[1] = step
window.Free()
