# right, 3 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

alone = MPI.Win.Allocate(8, 8)
alone.Lock(0)
alone.Put(np.ones(1), 0)
alone.Unlock(0)
alone.Free()
window.Free()
