# expect: ok; ranks=3
from mpi4py import MPI

comm = MPI.COMM_WORLD
row = comm.Split(comm.rank % 2)
row.Barrier()
