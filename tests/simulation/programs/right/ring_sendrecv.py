# expect: ok; ranks=3
from mpi4py import MPI

comm = MPI.COMM_WORLD
left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
assert comm.sendrecv(comm.rank, right, source=left) == left
