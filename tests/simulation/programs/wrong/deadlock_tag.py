# expect: deadlock 8
from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 0:
    comm.send(1, 1, tag=3)
else:
    comm.recv(source=0, tag=4)
