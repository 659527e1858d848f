# expect: ok; ranks=3
from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 0:
    requests = [comm.isend(tag, 1, tag=tag) for tag in range(3)]
    MPI.Request.waitall(requests)
elif comm.rank == 1:
    assert [comm.recv(source=0, tag=tag) for tag in (2, 0, 1)] == [2, 0, 1]
