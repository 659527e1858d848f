"""A program for virtual ranks, in a file of its own: each rank imports what the names of its file come from."""

from __future__ import annotations

import numpy as np


def ranks_program() -> None:
    """Rank 0 computes for ten seconds before it sends: all others wait."""
    import time

    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    values = np.zeros(4)
    if comm.rank == 0:
        time.sleep(10)
        for other in range(1, comm.size):
            comm.Send(values, dest=other)
    else:
        comm.Recv(values, source=0)
    comm.Barrier()
