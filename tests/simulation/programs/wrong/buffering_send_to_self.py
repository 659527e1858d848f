# expect: needs_buffering 5; ranks=1
from mpi4py import MPI

comm = MPI.COMM_WORLD
comm.send(1, comm.rank)
comm.recv(source=comm.rank)
