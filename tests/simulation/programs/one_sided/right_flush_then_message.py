# right, 3 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

window.Lock_all()
result = np.zeros(1)
if rank == 1:
    window.Put(np.full(1, 7.0), 0)
    window.Flush(0)
    comm.send("written", 2)
elif rank == 2:
    comm.recv(source=1)
    window.Get(result, 0)
    window.Flush(0)
    assert result[0] == 7.0
window.Unlock_all()
window.Free()
