# expect: order_dependent 6; ranks=3 explore=50
from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 0:
    print([comm.recv() for _ in range(comm.size - 1)])
else:
    comm.send(comm.rank, 0)
