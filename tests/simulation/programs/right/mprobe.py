# expect: ok; ranks=3
from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 0:
    for _ in range(comm.size - 1):
        comm.mprobe().recv()
else:
    comm.send(comm.rank, 0)
