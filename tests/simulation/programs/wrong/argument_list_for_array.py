# expect: exception 5
from mpi4py import MPI

comm = MPI.COMM_WORLD
comm.Bcast([1.0, 2.0])
