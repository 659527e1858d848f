# expect: deadlock 5; ranks=1
from mpi4py import MPI

comm = MPI.COMM_WORLD
comm.recv(source=comm.rank)
