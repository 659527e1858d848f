# expect: deadlock 6
from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 0:
    comm.probe(source=1)
    comm.recv(source=1)
