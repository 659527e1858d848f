# expect: deadlock 7; ranks=4
from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 0:
    for _ in range(comm.size):
        comm.recv()
else:
    comm.send(comm.rank, 0)
