# expect: run_ahead 6
from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 0:
    requests = [comm.isend(step, 1) for step in range(600)]
    MPI.Request.waitall(requests)
else:
    for _ in range(600):
        comm.recv(source=0)
