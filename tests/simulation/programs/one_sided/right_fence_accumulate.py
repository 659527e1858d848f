# right, 3 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

window.Fence()
window.Accumulate(np.arange(4.0), 0)
window.Accumulate(np.ones(1), 0, 3)
window.Fence()
assert rank > 0 or memory.tolist() == [0.0, 3.0, 6.0, 12.0]
window.Free()
