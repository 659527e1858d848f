# expect: ok; ranks=3
import mpi4py

mpi4py.rc.initialize = False
mpi4py.rc.finalize = False
from mpi4py import MPI

MPI.Init()
MPI.COMM_WORLD.Barrier()
MPI.Finalize()
