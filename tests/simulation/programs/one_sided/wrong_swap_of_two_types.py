# wrong: exception, 2 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

window.Lock_all()
window.Compare_and_swap(np.ones(1), np.zeros(1, "i8"), np.zeros(1), 0)  # named
window.Unlock_all()
window.Free()
