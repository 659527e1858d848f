# expect: exception 5
from mpi4py import MPI

comm = MPI.COMM_WORLD
comm.send(1, 0, tag=-5)
