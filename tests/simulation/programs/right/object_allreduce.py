# expect: ok; ranks=3
from mpi4py import MPI

comm = MPI.COMM_WORLD
assert comm.allreduce(comm.rank, op=MPI.MAX) == comm.size - 1
