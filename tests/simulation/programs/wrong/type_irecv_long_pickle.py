# expect: exception 8
from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 0:
    comm.send(list(range(50_000)), 1)
else:
    comm.irecv(source=0).wait()
