# expect: ok; ranks=3
from mpi4py import MPI

comm = MPI.COMM_WORLD
group = comm.Get_group()
first = group.Incl([0])
subset = comm.Create(first)
if comm.rank == 0:
    subset.Free()
first.Free()
group.Free()
