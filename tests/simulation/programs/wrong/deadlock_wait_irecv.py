# expect: deadlock 7
from mpi4py import MPI

comm = MPI.COMM_WORLD
other = 1 - comm.rank
request = comm.irecv(source=other)
request.wait()
comm.send(1, other)
