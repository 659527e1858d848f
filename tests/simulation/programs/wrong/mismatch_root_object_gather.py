# expect: collective_mismatch 5
from mpi4py import MPI

comm = MPI.COMM_WORLD
comm.gather(1, root=comm.rank)
