# wrong: conflicting_access, 3 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

window.Lock_all()
one, flag, data = np.ones(1), np.zeros(1), np.zeros(1)
if rank == 1:
    window.Put(np.full(1, 7.0), 0, 0)  # named
    window.Accumulate(one, 0, 1, MPI.REPLACE)
    window.Flush(0)
elif rank == 2:
    while flag[0] == 0:
        window.Fetch_and_op(one, flag, 0, 1, MPI.NO_OP)
        window.Flush(0)
    window.Get(data, 0, 0)  # named
window.Unlock_all()
window.Free()
