# wrong: conflicting_access, 3 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

group = comm.Get_group()
if rank == 0:
    window.Post(group.Incl([1, 2]))
    window.Wait()
else:
    window.Start(group.Incl([0]))
    window.Put(np.full(2, float(rank)), 0, rank - 1)  # named
    window.Complete()
window.Free()
