"""Two ranks greet each other, and both wait for ever. Run with 2 ranks or more."""

from mpi4py import MPI

comm = MPI.COMM_WORLD
rank = comm.Get_rank()
tag = rank  # the bug: each end labels the message with its own rank

if rank == 0:
    comm.send("hello from rank 0", dest=1, tag=tag)
    print("rank 0 received:", comm.recv(source=1, tag=tag))
elif rank == 1:
    print("rank 1 received:", comm.recv(source=0, tag=tag))
    comm.send("hello from rank 1", dest=0, tag=tag)
