# expect: collective_mismatch 6
from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 0:
    comm.bcast(1)
else:
    comm.reduce(1)
