# expect: not_finalized 7
import mpi4py

mpi4py.rc.initialize = False
from mpi4py import MPI

MPI.Init()
MPI.COMM_WORLD.Barrier()
