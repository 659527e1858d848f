# expect: not_waited 5
from mpi4py import MPI

comm = MPI.COMM_WORLD
request = comm.Ibarrier()
