# expect: ok; ranks=3
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
data = np.zeros(comm.size + 1)
source = np.ones(1 + (comm.rank == 0))
counts = [2] + [1] * (comm.size - 1)
request = comm.Allgatherv_init(source, [data, counts])
for _ in range(2):
    request.Start()
    request.Wait()
request.Free()
assert data.sum() == comm.size + 1
