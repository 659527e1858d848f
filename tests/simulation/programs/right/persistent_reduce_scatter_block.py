# expect: ok; ranks=3
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
data, source = np.zeros(1), np.ones(comm.size)
request = comm.Reduce_scatter_block_init(source, data)
for _ in range(2):
    request.Start()
    request.Wait()
request.Free()
assert data[0] == comm.size
