"""A program for virtual ranks. Each rank imports the modules of this file, so the file has no other contents."""

from __future__ import annotations

import numpy as np


def ranks_program() -> None:
    """Let rank 0 compute for ten seconds before it sends; all other ranks wait."""
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
