# expect: exception 5
from mpi4py import MPI

comm = MPI.COMM_WORLD
comm.scatter([1] * 5)
