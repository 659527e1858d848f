"""Starting programs on N ranks, and ending them well.

``launched()`` says whether this process already is a rank of an MPI job; ``start(n, argv)`` makes such a job
out of any command; ``prepare()`` sets what must be set before numpy and MPI are loaded. Nothing here is
imported by the library itself: only the command line, the tests and scripts use it. How a failure ends the job, however
it was started, is said in ``spmdsim/shutdown``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from spmdsim.launch.environment import prepare
from spmdsim.launcher import Launched, detect, launched

__all__ = ["Launched", "detect", "end_job_on_error", "launched", "prepare", "start", "start_self"]


def start(
    n: int,
    argv: Sequence[str],
    log_dir: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    *,
    lockstep: bool = False,
    blocks: bool = False,
    shown: bool = True,
) -> int:
    """Run a command on ``n`` ranks and wait for it.

    Args:
        n: number of ranks.
        argv: the command of each rank, such as ``[sys.executable, "script.py"]``.
        log_dir: write ``worker_N.log`` per rank there, and echo rank 0.
        env: variables to add to the environment of the ranks.
        lockstep: start one process that plays all ranks instead, without MPI.
        blocks: what a rank of ``spmdsim.launch.bootstrap`` prints at once comes out in one piece, not mixed with
            lines of other ranks.
        shown: whether rank 0 is echoed where there are logs.

    Returns:
        0 if every rank ended well, else the exit code of the rank that failed first.

    Raises:
        WorldError: no MPI, or none that fits the installed mpi4py.
    """
    from spmdsim.launch.job_starter import start_command

    return start_command(
        n, list(argv), None if log_dir is None else Path(log_dir), env, lockstep, blocks, shown
    )


def end_job_on_error(name: str = "program") -> None:
    """Make an uncaught exception of this rank, or of one of its threads, end the whole job.

    Importing the package does so in every process that a launcher started: this is for programs that set hooks of
    their own before, or that want another name in error lines.
    """
    from spmdsim.shutdown.hooks import protect

    protect(name)


def start_self(n: int, argv: Sequence[str], log_dir: str | os.PathLike[str] | None = None) -> int:
    """Run ``python -m spmdsim <argv>`` on ``n`` ranks: how a command starts itself under MPI.

    Args:
        n: number of ranks.
        argv: the command's words.
        log_dir: as of :func:`start`.
    """
    return start(n, [sys.executable, "-m", "spmdsim", *argv], log_dir)
