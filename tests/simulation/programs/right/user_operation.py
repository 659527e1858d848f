# expect: ok; ranks=3
from mpi4py import MPI

comm = MPI.COMM_WORLD
op = MPI.Op.Create(lambda a, b, t: None, commute=True)
op.Free()
assert comm.allreduce(2, op=lambda a, b: a * b) == 2**comm.size
