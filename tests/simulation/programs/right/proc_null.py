# expect: ok; ranks=3
from mpi4py import MPI

comm = MPI.COMM_WORLD
comm.send(1, MPI.PROC_NULL)
assert comm.recv(source=MPI.PROC_NULL) is None
