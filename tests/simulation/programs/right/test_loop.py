# expect: ok; ranks=3
from mpi4py import MPI

comm = MPI.COMM_WORLD
request = comm.irecv(source=(comm.rank - 1) % comm.size)
comm.send(1, (comm.rank + 1) % comm.size)
while not request.test()[0]:
    pass
