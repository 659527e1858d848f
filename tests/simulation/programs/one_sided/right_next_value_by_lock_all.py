# right, 3 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

one, value = np.ones(1), np.zeros(1)
window.Lock_all()
total = 0
while value[0] < 20:
    window.Fetch_and_op(one, value, 0)
    window.Flush(0)
    total += 1
window.Unlock_all()
assert comm.allreduce(total) == 20 + size
window.Free()
