# expect: ok; ranks=3
from mpi4py import MPI

comm = MPI.COMM_WORLD
values = comm.gather(comm.rank)
assert values == (list(range(comm.size)) if comm.rank == 0 else None)
