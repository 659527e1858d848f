# expect: deadlock 9
from mpi4py import MPI

comm = MPI.COMM_WORLD
copy = comm.Dup()
if comm.rank == 0:
    copy.send(1, 1)
else:
    comm.recv(source=0)
copy.Free()
