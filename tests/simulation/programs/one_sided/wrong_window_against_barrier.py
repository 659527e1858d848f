# wrong: collective_mismatch, 2 ranks
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size

if rank == 0:
    MPI.Win.Allocate(8, 8, comm=comm)  # named
else:
    comm.Barrier()  # named
