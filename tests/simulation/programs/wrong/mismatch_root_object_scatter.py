# expect: collective_mismatch 5
from mpi4py import MPI

comm = MPI.COMM_WORLD
comm.scatter([1, 2], root=comm.rank)
