# expect: unreceived 7
from mpi4py import MPI

comm = MPI.COMM_WORLD
MPI.Attach_buffer(bytearray(1000))
if comm.rank == 0:
    comm.bsend(1, 1, tag=2)
MPI.Detach_buffer()
