"""Start a program on N ranks.

The library itself does not import this package: commands, tests and scripts do. ``start`` starts a command as a job, and
``spmdsim.launch.bootstrap`` is what each rank of the job runs. ``prepare`` sets what must be set before numpy and MPI are
loaded. ``spmdsim.shutdown`` ends a job whose rank fails, however the job was started.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spmdsim.launcher import Launched, detect, launched
from spmdsim.lazy_imports import lazy_names

if TYPE_CHECKING:
    from spmdsim.launch.job_starter import end_job_on_error, start, start_self
    from spmdsim.launch.mpi import prepare

__all__ = ["Launched", "detect", "end_job_on_error", "launched", "prepare", "start", "start_self"]

__getattr__ = lazy_names(__name__, {"job_starter": "end_job_on_error start start_self", "mpi": "prepare"})
