# right, 3 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

window.Lock_all()
for turn in range(size):
    if rank == turn:
        window.Put(np.full(1, float(turn)), 0)
        window.Flush(0)
    comm.bcast("written", root=turn)
    comm.Ibarrier().Wait()
    comm.allreduce(1)
window.Unlock_all()
assert rank > 0 or memory[0] == size - 1
window.Free()
