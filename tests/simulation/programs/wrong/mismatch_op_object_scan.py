# expect: collective_mismatch 6
from mpi4py import MPI

comm = MPI.COMM_WORLD
op = MPI.SUM if comm.rank == 0 else MPI.MAX
comm.scan(1, op=op)
