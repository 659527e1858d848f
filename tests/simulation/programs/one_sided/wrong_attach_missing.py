# wrong: exception, 2 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

block = np.zeros(2)
dynamic = MPI.Win.Create_dynamic(comm=comm)
addresses = comm.allgather(block.ctypes.data)
dynamic.Fence()
dynamic.Put(np.ones(1), 0, addresses[0])  # named
dynamic.Fence()
dynamic.Free()
window.Free()
