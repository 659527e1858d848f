# expect: ok; ranks=3
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
data = np.zeros(2 * comm.size)
spec = [data, ([1] * comm.size, [2 * rank for rank in range(comm.size)])]
request = comm.Gatherv_init(np.ones(1), spec if comm.rank == 0 else None)
for _ in range(2):
    request.Start()
    request.Wait()
request.Free()
assert comm.rank or data.tolist() == [1, 0] * comm.size
