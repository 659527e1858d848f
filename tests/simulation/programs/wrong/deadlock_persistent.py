# expect: deadlock 10
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
other = 1 - comm.rank
data = np.zeros(1)
request = comm.Recv_init(data, other)
request.Start()
request.Wait()
request.Free()
