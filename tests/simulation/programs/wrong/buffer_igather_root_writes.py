# expect: buffer_reused 7
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rows = np.zeros((comm.size, 2))
request = comm.Igather(np.ones(2), rows if comm.rank == 0 else None)
rows += 1
request.Wait()
