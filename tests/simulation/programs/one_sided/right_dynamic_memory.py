# right, 3 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

block = np.zeros(2)
dynamic = MPI.Win.Create_dynamic(comm=comm)
dynamic.Attach(block)
addresses = comm.allgather(block.ctypes.data)
right = (rank + 1) % size
dynamic.Fence()
dynamic.Put(np.full(1, float(rank)), right, addresses[right] + 8)
dynamic.Fence()
assert block.tolist() == [0.0, (rank - 1) % size]
dynamic.Detach(block)
dynamic.Free()
window.Free()
