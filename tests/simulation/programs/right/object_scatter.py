# expect: ok; ranks=3
from mpi4py import MPI

comm = MPI.COMM_WORLD
values = [rank * 2 for rank in range(comm.size)] if comm.rank == 0 else None
assert comm.scatter(values) == comm.rank * 2
