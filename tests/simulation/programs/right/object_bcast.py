# expect: ok; ranks=3
from mpi4py import MPI

comm = MPI.COMM_WORLD
assert comm.bcast(comm.rank + 5, root=1) == 6
