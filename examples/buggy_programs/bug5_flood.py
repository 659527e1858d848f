"""A quick producer and a slow consumer: fine on one machine, out of memory on another. Run with 2 ranks."""

import time

import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank = comm.Get_rank()
block = np.zeros(2000, dtype=np.uint8)
blocks = 1000

if rank == 0:
    for _ in range(blocks):
        comm.Send(block, dest=1)  # the bug: nothing ever slows the producer down
elif rank == 1:
    for _ in range(blocks):
        comm.Recv(block, source=0)
        time.sleep(0.001)  # the work on each block takes longer than making one
    print("rank 1 has worked on all blocks")
