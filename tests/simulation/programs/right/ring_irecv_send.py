# expect: ok; ranks=3
from mpi4py import MPI

comm = MPI.COMM_WORLD
request = comm.irecv(source=(comm.rank - 1) % comm.size)
comm.send(comm.rank, (comm.rank + 1) % comm.size)
assert request.wait() == (comm.rank - 1) % comm.size
