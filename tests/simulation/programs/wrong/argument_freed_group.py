# expect: exception 7
from mpi4py import MPI

comm = MPI.COMM_WORLD
group = comm.Get_group()
group.Free()
group.Incl([0])
