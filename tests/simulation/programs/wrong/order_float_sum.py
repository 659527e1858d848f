# expect: order_dependent 8; ranks=4 explore=50
from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 0:
    total = 0.0
    for _ in range(comm.size - 1):
        total += comm.recv()
    print(total)
else:
    comm.send([0.0, 1e16, 1.0, -1e16][comm.rank], 0)
