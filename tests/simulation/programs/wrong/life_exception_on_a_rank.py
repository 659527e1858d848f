# expect: exception 6
from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 1:
    raise ValueError("bad input")
comm.Barrier()
