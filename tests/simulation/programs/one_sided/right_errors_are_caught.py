# right, 3 ranks
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
memory = np.zeros(4)
window = MPI.Win.Create(memory, 8, comm=comm)

for call in (window.Wait, window.Flush_all, lambda: window.Put(memory, 0)):
    try:
        call()
    except MPI.Exception as error:
        assert error.Get_error_class() == MPI.ERR_RMA_SYNC
window.Free()
