# expect: ok; ranks=3
from mpi4py import MPI

comm = MPI.COMM_WORLD
request = comm.isend(comm.rank, (comm.rank + 1) % comm.size)
comm.recv(source=(comm.rank - 1) % comm.size)
request.wait()
