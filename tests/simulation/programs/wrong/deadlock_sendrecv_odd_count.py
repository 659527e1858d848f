# expect: deadlock 7; ranks=3
from mpi4py import MPI

comm = MPI.COMM_WORLD
partner = comm.rank ^ 1
if partner < comm.size or comm.rank:
    comm.sendrecv(1, partner % comm.size, source=partner % comm.size)
