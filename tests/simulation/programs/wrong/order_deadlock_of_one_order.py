# expect: deadlock 7; ranks=3 explore=50
from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 0:
    first = comm.recv()
    comm.recv(source=3 - first) if first == 1 else comm.recv(source=2)
else:
    comm.send(comm.rank, 0)
