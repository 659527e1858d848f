# expect: ok; ranks=3
from mpi4py import MPI

comm = MPI.COMM_WORLD
grid = comm.Create_cart([1, comm.size])
row = grid.Sub([False, True])
assert row.size == comm.size
row.Free()
grid.Free()
