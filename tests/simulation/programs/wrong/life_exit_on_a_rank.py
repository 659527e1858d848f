# expect: exit 8
from mpi4py import MPI

comm = MPI.COMM_WORLD
import sys

if comm.rank == 1:
    sys.exit(3)
comm.Barrier()
