# expect: deadlock 7; ranks=3
from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 0:
    comm.recv()
    comm.recv(source=1)
elif comm.rank == 1:
    comm.send(1, 0)
else:
    comm.barrier() if comm.size == 1 else None
