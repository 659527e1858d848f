# expect: exception 7
from mpi4py import MPI

comm = MPI.COMM_WORLD
copy = comm.Dup()
copy.Free()
copy.Barrier()
