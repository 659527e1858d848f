# expect: ok; ranks=3 strict
from mpi4py import MPI

comm = MPI.COMM_WORLD
for step in range(8):
    row = comm.Split(comm.rank % 2)
    row.Barrier()
    row.Free()
