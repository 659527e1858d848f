# right, 3 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

window.Lock_all()
old = np.zeros(4)
window.Get_accumulate(np.ones(4), old, 0)
window.Flush(0)
window.Get_accumulate(None, old, 0, op=MPI.NO_OP)
window.Flush(0)
assert 1.0 <= old[0] <= size
window.Unlock_all()
window.Free()
