# expect: abort 6
from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 1:
    comm.Abort(4)
comm.Barrier()
