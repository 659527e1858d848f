# expect: ok; ranks=3
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
data = np.zeros(comm.size)
source = np.full(comm.size, comm.rank, float)
request = comm.Alltoall_init(source, data)
for _ in range(2):
    request.Start()
    request.Wait()
request.Free()
assert data.tolist() == list(range(comm.size))
