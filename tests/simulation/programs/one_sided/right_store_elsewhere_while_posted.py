# right, 3 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

group = comm.Get_group()
if rank == 0:
    window.Post(group.Incl([1]))
    memory[3] = 5.0
    window.Wait()
elif rank == 1:
    window.Start(group.Incl([0]))
    window.Put(np.ones(2), 0)
    window.Complete()
window.Free()
