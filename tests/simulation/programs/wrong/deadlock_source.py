# expect: deadlock 8; ranks=3
from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 0:
    comm.ssend(1, 2)
elif comm.rank == 2:
    comm.recv(source=1)
