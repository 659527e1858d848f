# expect: ok; ranks=3
from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 0:
    while not comm.iprobe(source=1):
        pass
    comm.recv(source=1)
elif comm.rank == 1:
    comm.send(1, 0)
