# expect: exception 6
from mpi4py import MPI

comm = MPI.COMM_WORLD
subset = comm.Split(0 if comm.rank == 0 else MPI.UNDEFINED)
subset.Barrier()
