# expect: ok; ranks=3
from mpi4py import MPI

comm = MPI.COMM_WORLD
grid = comm.Create_cart([comm.size], periods=[True])
assert len(grid.neighbor_allgather(comm.rank)) == 2
grid.Free()
