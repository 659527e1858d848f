# expect: ok; ranks=3
from mpi4py import MPI

comm = MPI.COMM_WORLD
assert comm.allgather(comm.rank) == list(range(comm.size))
