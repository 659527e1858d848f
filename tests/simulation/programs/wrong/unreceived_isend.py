# expect: unreceived 6
from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 0:
    comm.isend(1, 1).Free()
