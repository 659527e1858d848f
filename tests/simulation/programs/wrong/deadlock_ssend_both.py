# expect: deadlock 6
from mpi4py import MPI

comm = MPI.COMM_WORLD
other = 1 - comm.rank
comm.ssend(comm.rank, other)
comm.recv(source=other)
