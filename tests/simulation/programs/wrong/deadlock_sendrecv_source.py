# expect: deadlock 5; ranks=3
from mpi4py import MPI

comm = MPI.COMM_WORLD
comm.sendrecv(1, (comm.rank + 1) % comm.size, source=(comm.rank + 1) % comm.size)
