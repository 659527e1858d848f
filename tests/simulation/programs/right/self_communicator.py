# expect: ok; ranks=3
from mpi4py import MPI

comm = MPI.COMM_WORLD
MPI.COMM_SELF.Barrier()
assert MPI.COMM_SELF.allreduce(comm.rank) == comm.rank
