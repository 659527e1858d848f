# expect: ok; ranks=3
from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 0:
    status = MPI.Status()
    for _ in range(comm.size - 1):
        assert comm.recv(status=status) == status.source
else:
    comm.send(comm.rank, 0, tag=comm.rank)
