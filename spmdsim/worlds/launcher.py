"""What the launcher's environment says about this process, before MPI is started."""

from __future__ import annotations

import os
from collections.abc import Mapping

#: Pairs of variables that name this process's rank and the number of processes, by launcher.
VARIABLES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI's mpirun
    ("PMI_RANK", "PMI_SIZE"),  # MPICH's mpiexec, Intel MPI, srun --mpi=pmi2
    ("PMIX_RANK", "SLURM_STEP_NUM_TASKS"),  # srun --mpi=pmix
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),  # MVAPICH
)


def launched(environment: Mapping[str, str] | None = None) -> tuple[int, int] | None:
    """Rank and size that an MPI launcher gave this process, or None if no launcher started it.

    >>> launched({"PMI_RANK": "3", "PMI_SIZE": "8"})
    (3, 8)
    >>> launched({}) is None
    True
    """
    env = os.environ if environment is None else environment
    for rank, size in VARIABLES:
        if env.get(rank, "").isdigit() and env.get(size, "").isdigit():
            return int(env[rank]), int(env[size])
    return None
