# expect: ok; ranks=3
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
data = np.full(3, comm.rank)
request = comm.Bcast_init(data, root=1)
for _ in range(2):
    request.Start()
    request.Wait()
request.Free()
assert data.tolist() == [1, 1, 1]
