# expect: deadlock 8
from mpi4py import MPI

comm = MPI.COMM_WORLD
other = 1 - comm.rank
requests = [comm.irecv(source=other, tag=tag) for tag in (1, 2)]
comm.send(1, other, tag=1)
MPI.Request.waitall(requests)
