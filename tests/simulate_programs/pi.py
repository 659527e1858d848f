"""Compute the area under 4 / (1 + x²). Every rank adds some of the strips, whose number is an argument."""

import sys

from mpi4py import MPI

comm = MPI.COMM_WORLD
steps = comm.bcast(int(sys.argv[1]) if comm.rank == 0 else None, root=0)
width = 1.0 / steps
own_sum = sum(4.0 / (1.0 + ((i + 0.5) * width) ** 2) for i in range(comm.rank, steps, comm.size))
pi = comm.reduce(own_sum * width, op=MPI.SUM, root=0)
if comm.rank == 0:
    print(f"pi is about {pi:.6f}")
