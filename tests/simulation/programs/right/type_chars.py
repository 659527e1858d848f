# expect: ok; ranks=3
from mpi4py import MPI

comm = MPI.COMM_WORLD
comm.Bcast([bytearray(8), MPI.CHAR])
