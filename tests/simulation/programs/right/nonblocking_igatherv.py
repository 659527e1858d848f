# expect: ok; ranks=3
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
data = np.zeros(2 * comm.size)
spec = [data, ([1] * comm.size, [2 * rank for rank in range(comm.size)])]
request = comm.Igatherv(np.ones(1), spec if comm.rank == 0 else None)
request.Wait()
assert comm.rank or data.tolist() == [1, 0] * comm.size
