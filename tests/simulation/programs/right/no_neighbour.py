# expect: ok; ranks=3
from mpi4py import MPI

comm = MPI.COMM_WORLD
grid = comm.Create_cart([comm.size])
left, right = grid.Shift(0, 1)
grid.sendrecv(1, right, source=left)
grid.Free()
