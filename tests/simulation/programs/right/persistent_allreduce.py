# expect: ok; ranks=3
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
data, source = np.zeros(2), np.ones(2)
request = comm.Allreduce_init(source, data)
for _ in range(2):
    request.Start()
    request.Wait()
request.Free()
assert data.tolist() == [comm.size] * 2
