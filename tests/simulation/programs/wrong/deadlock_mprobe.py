# expect: deadlock 6
from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 0:
    comm.mprobe(source=1, tag=2)
else:
    comm.send(1, 0, tag=3)
