# expect: not_waited 6
from mpi4py import MPI

comm = MPI.COMM_WORLD
other = 1 - comm.rank
requests = [comm.isend(tag, other, tag=tag) for tag in range(3)]
for tag in range(3):
    comm.recv(source=other, tag=tag)
MPI.Request.waitall(requests[:2])
