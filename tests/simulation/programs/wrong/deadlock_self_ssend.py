# expect: deadlock 5; ranks=1
from mpi4py import MPI

comm = MPI.COMM_WORLD
comm.ssend(1, comm.rank)
comm.recv(source=comm.rank)
