# expect: deadlock 6; ranks=3
from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank != 1:
    comm.Split(0)
