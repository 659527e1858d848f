# expect: unreceived 6
from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 0:
    requests = [comm.isend(step, 1) for step in range(3)]
else:
    for _ in range(2):
        comm.recv(source=0)
