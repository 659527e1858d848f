# expect: not_waited 6
from mpi4py import MPI

comm = MPI.COMM_WORLD
other = 1 - comm.rank
request = comm.isend(1, other)
comm.recv(source=other)
