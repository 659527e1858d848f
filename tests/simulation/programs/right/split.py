# expect: ok; ranks=3
from mpi4py import MPI

comm = MPI.COMM_WORLD
subset = comm.Split(comm.rank % 2, key=-comm.rank)
assert subset.allreduce(1) == subset.size
subset.Free()
