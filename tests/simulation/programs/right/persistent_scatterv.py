# expect: ok; ranks=3
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
data = np.zeros(comm.rank + 1)
counts = [rank + 1 for rank in range(comm.size)]
source = np.ones(sum(counts))
request = comm.Scatterv_init([source, counts] if comm.rank == 0 else None, data)
for _ in range(2):
    request.Start()
    request.Wait()
request.Free()
assert data.all()
