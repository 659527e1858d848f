# expect: ok; ranks=3
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
data, source = np.zeros(comm.size), np.ones(comm.size)
counts = [1] * comm.size
request = comm.Alltoallv_init([source, counts], [data, counts])
for _ in range(2):
    request.Start()
    request.Wait()
request.Free()
assert data.all()
