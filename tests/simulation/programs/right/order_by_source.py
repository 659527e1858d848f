# expect: ok; ranks=4 explore=100
from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 0:
    print([comm.recv(source=rank) for rank in range(1, comm.size)])
else:
    comm.send(comm.rank, 0)
