# expect: ok; ranks=3
from mpi4py import MPI

comm = MPI.COMM_WORLD
total = comm.reduce(1)
assert total == (comm.size if comm.rank == 0 else None)
