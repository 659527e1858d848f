# expect: ok; ranks=3
from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 0:
    requests = [comm.irecv(source=rank) for rank in range(1, comm.size)]
    for _ in requests:
        MPI.Request.waitany(requests)
else:
    comm.send(1, 0)
