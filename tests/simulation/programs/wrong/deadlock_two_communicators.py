# expect: deadlock 7
from mpi4py import MPI

comm = MPI.COMM_WORLD
first, second = comm.Dup(), comm.Dup()
if comm.rank == 0:
    first.Barrier()
    second.Barrier()
else:
    second.Barrier()
    first.Barrier()
first.Free()
second.Free()
