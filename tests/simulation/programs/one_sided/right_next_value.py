# right, 3 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

one, value = np.ones(1), np.zeros(1)
values = []
for _ in range(4):
    window.Lock(0, MPI.LOCK_SHARED)
    window.Fetch_and_op(one, value, 0, 0, MPI.SUM)
    window.Unlock(0)
    values.append(value[0])
everything = comm.gather(values)
assert rank > 0 or sorted(value for row in everything for value in row) == list(range(12))
window.Free()
