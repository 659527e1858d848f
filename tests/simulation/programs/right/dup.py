# expect: ok; ranks=3
from mpi4py import MPI

comm = MPI.COMM_WORLD
copy = comm.Dup()
request = copy.isend(1, (comm.rank + 1) % comm.size)
comm.Barrier()
copy.recv(source=(comm.rank - 1) % comm.size)
request.wait()
copy.Free()
