# expect: order_dependent 6; ranks=3 explore=50
from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 0:
    best = comm.recv()
    comm.recv()
    print(best)
else:
    comm.send(comm.rank * 10, 0)
