# expect: ok; ranks=3
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
data = np.zeros((comm.size, 2))
request = comm.Gather_init(np.full(2, comm.rank, float), data)
for _ in range(2):
    request.Start()
    request.Wait()
request.Free()
assert comm.rank or data[:, 0].tolist() == list(range(comm.size))
