# expect: exception 5
from mpi4py import MPI

comm = MPI.COMM_WORLD
comm.recv(source=0, tag=MPI.ANY_SOURCE)
