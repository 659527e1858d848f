"""Sum a block of an array on each rank; the program stops at its first MPI call. Run with 4 ranks."""

import mpi4py

mpi4py.rc.initialize = False  # "we start MPI ourselves" ...

import numpy as np  # noqa: E402
from mpi4py import MPI  # noqa: E402

# ... and here the bug: MPI.Init() is missing, and so is MPI.Finalize() at the end.
comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()

numbers = np.arange(64.0).reshape(size, -1)[rank]
total = comm.reduce(float(numbers.sum()), op=MPI.SUM, root=0)
if rank == 0:
    print("sum:", total)
