# expect: ok; ranks=4
from mpi4py import MPI

comm = MPI.COMM_WORLD
right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
if comm.rank % 2 == 0:
    comm.send(1, right)
    comm.recv(source=left)
else:
    comm.recv(source=left)
    comm.send(1, right)
