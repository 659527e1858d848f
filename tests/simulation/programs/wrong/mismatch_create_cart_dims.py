# expect: collective_mismatch 5
from mpi4py import MPI

comm = MPI.COMM_WORLD
comm.Create_cart([2, 1] if comm.rank == 0 else [1, 2])
