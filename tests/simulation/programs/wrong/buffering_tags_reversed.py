# expect: needs_buffering 6
from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 0:
    comm.send(1, 1, tag=1)
    comm.send(2, 1, tag=2)
else:
    comm.recv(source=0, tag=2)
    comm.recv(source=0, tag=1)
