# expect: deadlock 6
from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 0:
    comm.recv(source=1)
    comm.bcast(1, root=0)
else:
    comm.bcast(None, root=0)
    comm.send(1, 0)
