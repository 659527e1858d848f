# expect: deadlock 6; ranks=3
from mpi4py import MPI

comm = MPI.COMM_WORLD
grid = comm.Create_cart([comm.size])
grid.recv(source=(grid.rank + 1) % grid.size)
grid.Free()
