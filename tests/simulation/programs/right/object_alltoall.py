# expect: ok; ranks=3
from mpi4py import MPI

comm = MPI.COMM_WORLD
assert comm.alltoall([comm.rank] * comm.size) == list(range(comm.size))
