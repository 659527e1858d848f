# expect: ok; ranks=3
from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 0:
    assert sum(comm.recv() for _ in range(comm.size - 1)) == comm.size * (comm.size - 1) // 2
else:
    comm.send(comm.rank, 0)
