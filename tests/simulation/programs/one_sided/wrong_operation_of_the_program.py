# wrong: exception, 2 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

largest = MPI.Op.Create(lambda left, right, datatype: None)
window.Fence()
window.Accumulate(np.ones(1), 0, op=largest)  # named
window.Fence()
window.Free()
