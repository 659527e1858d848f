"""What a process can know, and must set, before numpy and MPI are loaded.

Launchers tell every rank who it is in environment variables. That is enough to pick the number of BLAS
threads, to print on one rank only, and to notice later that MPI itself sees something else.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from math import ceil
from pathlib import Path

from spmdsim.launcher import LAUNCHER, Launched, detect, read_job_facts

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
"""Read once, when the library is loaded: to be set before ``import numpy``."""


#: Makes Open MPI's waiting ranks give way to others.
YIELD_VARIABLE = "OMPI_MCA_mpi_yield_when_idle"


def cores(together: bool = False) -> int:
    """Cores this process may use: its affinity, and a container's share of time if that is less.

    ``together`` are those of all ranks on this machine, as one of them sees it: launchers bind each to one, and are not
    bound themselves.
    """
    try:
        launcher = int(read_job_facts().get(LAUNCHER, os.getppid()))
        available = len(os.sched_getaffinity(launcher if together else 0))
    except (AttributeError, OSError):  # not on this system, or not there any more
        available = os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return min(available, max(1, ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no such file, or "max"
        return available


def blas_threads(local_size: int, available: int) -> int:
    """Threads per rank that fill the machine once: never more threads than cores.

    >>> blas_threads(8, 2), blas_threads(2, 8)
    (1, 4)
    """
    return max(1, available // max(1, local_size))


def mpi_settings(job: Launched, available: int) -> dict[str, str]:
    """Settings of the MPI library worth having on this machine; none is needed for correctness.

    Ranks on one machine need no network, and looking for one costs Open MPI a second at start. More ranks than
    cores must give way while they wait: an Open MPI that was told of enough slots does not see it itself.
    """
    if job.launcher != "Open MPI":
        return {}
    near = {"OMPI_MCA_btl": "^ofi,uct", "OMPI_MCA_mtl": "^ofi", "OMPI_MCA_osc": "^ucx"}
    crowded = {YIELD_VARIABLE: "1"}
    return (near if job.local_size == job.size else {}) | (crowded if job.local_size > available else {})


def prepare(environ: MutableMapping[str, str] | None = None) -> Launched | None:
    """Set threads and MPI settings for a rank; nothing outside a launcher, and never over the user's own.

    Call it first, before numpy and mpi4py are imported: both read their settings when they are loaded.
    """
    environ = os.environ if environ is None else environ
    job = detect(environ)
    if job is None:
        return None
    available = cores()
    settings = mpi_settings(job, available)
    if "OMP_NUM_THREADS" not in environ:  # every BLAS falls back on it
        settings |= dict.fromkeys(THREAD_VARIABLES, str(blas_threads(job.local_size, available)))
    settings["MPI4PY_CHECK_MPIEXEC"] = "0"  # each rank would warn of what is checked here
    for name, value in settings.items():
        environ.setdefault(name, value)
    return job
