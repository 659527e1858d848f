# expect: ok; ranks=3
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
data, source = np.zeros(2), np.ones(2)
request = comm.Iexscan(source, data)
request.Wait()
assert data[0] == comm.rank
