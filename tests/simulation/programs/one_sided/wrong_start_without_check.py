# wrong: wrong_assertion, 2 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

group = comm.Get_group()
if rank == 0:
    window.Start(group.Incl([1]), MPI.MODE_NOCHECK)  # named
    window.Put(np.ones(1), 1)
    window.Complete()
    comm.Barrier()
else:
    comm.Barrier()
    window.Post(group.Incl([0]), MPI.MODE_NOCHECK)
    window.Wait()
window.Free()
