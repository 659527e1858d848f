# expect: collective_mismatch 6
from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 0:
    comm.scan(1)
else:
    comm.exscan(1)
