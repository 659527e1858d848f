# expect: ok; ranks=4 explore=100
from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 0:
    print(sum(comm.recv() for _ in range(comm.size - 1)))
else:
    comm.send(comm.rank, 0)
