# expect: finalized 6
from mpi4py import MPI

comm = MPI.COMM_WORLD
MPI.Finalize()
comm.Barrier()
