# expect: ok; ranks=3
from mpi4py import MPI

comm = MPI.COMM_WORLD
group = comm.Get_group()
subset = group.Excl([0])
if comm.rank:
    new = comm.Create_group(subset)
    new.Barrier()
    new.Free()
subset.Free()
group.Free()
