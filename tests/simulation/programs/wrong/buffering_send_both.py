# expect: needs_buffering 6
from mpi4py import MPI

comm = MPI.COMM_WORLD
other = 1 - comm.rank
comm.send(1, other)
comm.recv(source=other)
