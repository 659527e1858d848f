# expect: ok; ranks=3
from mpi4py import MPI

comm = MPI.COMM_WORLD
assert comm.allreduce((comm.rank, comm.rank), op=MPI.MAXLOC) == (comm.size - 1, comm.size - 1)
