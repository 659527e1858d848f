# expect: deadlock 5; ranks=5
from mpi4py import MPI

comm = MPI.COMM_WORLD
data = comm.recv(source=(comm.rank - 1) % comm.size)
comm.send(1, (comm.rank + 1) % comm.size)
