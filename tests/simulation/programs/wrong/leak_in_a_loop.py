# expect: not_freed 6
from mpi4py import MPI

comm = MPI.COMM_WORLD
for step in range(8):
    row = comm.Split(comm.rank % 2)
    row.Barrier()
