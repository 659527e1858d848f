# expect: ok; ranks=3
from mpi4py import MPI

comm = MPI.COMM_WORLD
MPI.Attach_buffer(bytearray(10_000))
comm.bsend(comm.rank, (comm.rank + 1) % comm.size)
comm.recv(source=(comm.rank - 1) % comm.size)
MPI.Detach_buffer()
