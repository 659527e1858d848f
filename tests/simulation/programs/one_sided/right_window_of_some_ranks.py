# right, 4 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

pair = comm.Split(rank // 2)
pair_window = MPI.Win.Allocate(8, 8, comm=pair)
pair_window.Fence()
pair_window.Put(np.full(1, float(rank)), 0 if pair.rank else pair.size - 1)
pair_window.Fence()
pair_window.Free()
pair.Free()
window.Free()
