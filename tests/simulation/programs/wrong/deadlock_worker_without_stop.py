# expect: deadlock 8
from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 0:
    comm.send("work", 1)
else:
    while comm.recv(source=0) != "stop":
        pass
