# expect: deadlock 7
from mpi4py import MPI

comm = MPI.COMM_WORLD
other = 1 - comm.rank
request = comm.irecv(source=other)
while not request.test()[0]:
    pass
