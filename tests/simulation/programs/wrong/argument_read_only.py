# expect: exception 5
from mpi4py import MPI

comm = MPI.COMM_WORLD
comm.Recv(bytes(8), comm.rank)
