# expect: deadlock 6
from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 0:
    comm.Barrier()
    comm.send(1, 1)
else:
    comm.recv(source=0)
    comm.Barrier()
