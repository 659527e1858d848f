# expect: ok; ranks=3
from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 0:
    comm.ssend(1, 1)
elif comm.rank == 1:
    comm.recv(source=0)
