# expect: exception 5
from mpi4py import MPI

comm = MPI.COMM_WORLD
comm.Get_group().Incl([0, 0])
