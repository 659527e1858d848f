# expect: deadlock 6
from mpi4py import MPI

comm = MPI.COMM_WORLD
other = 1 - comm.rank
data = comm.recv(source=other)
comm.send(comm.rank, other)
