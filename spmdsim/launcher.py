"""Who an MPI launcher says this process is, read from its environment variables before MPI is started."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import TextIO

#: The variable in which a process of a job gives facts to the processes that it starts, as JSON. Users do not set it.
JOB_VARIABLE = "SPMDSIM_JOB"
#: The facts: the starter's folder of notes and its process number; the folder of the ranks' logs; the file that ranks print
#: to in blocks; the process number of the MPI launcher, which a rank's supervisor gives to the rank.
FOLDER, STARTER, LOGS, BLOCKS, LAUNCHER = "folder", "starter", "logs", "blocks", "launcher"


def read_job_facts(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return what the starter of this job and this rank's supervisor gave to it, by name; {} without a starter.

    >>> environment = {}
    >>> give_job_facts(environment, logs="/tmp/logs")
    >>> give_job_facts(environment, starter="41")
    >>> read_job_facts(environment)
    {'logs': '/tmp/logs', 'starter': '41'}
    """
    text = (os.environ if environment is None else environment).get(JOB_VARIABLE)
    if not text:
        return {}
    import json

    try:
        facts = json.loads(text)
    except ValueError:  # another program's variable
        return {}
    return {str(k): str(v) for k, v in facts.items()} if isinstance(facts, dict) else {}


def give_job_facts(environment: MutableMapping[str, str], **facts: str | None) -> None:
    """Add facts to those in an environment's variable; None removes a fact."""
    import json

    together: dict[str, str | None] = {**read_job_facts(environment), **facts}
    job_facts = {name: fact for name, fact in together.items() if fact is not None}
    if job_facts:
        environment[JOB_VARIABLE] = json.dumps(job_facts)
    else:
        environment.pop(JOB_VARIABLE, None)


@dataclass(frozen=True)
class Launched:
    """What the launcher says about this rank.

    Attributes:
        launcher: "Open MPI", "MPICH" (or a relative that speaks PMI), "Slurm".
        rank: number of this rank.
        size: number of ranks of the job.
        local_size: how many of them share this machine; 1 if the launcher does not say.
    """

    launcher: str
    rank: int
    size: int
    local_size: int = 1


def _number(environ: Mapping[str, str], *names: str) -> int | None:
    """The first of the variables that is there and starts with digits."""
    for name in names:
        number = re.match(r"\d+", environ.get(name, ""))
        if number:
            return int(number.group())
    return None


def detect(environ: Mapping[str, str] | None = None) -> Launched | None:
    """Who the launcher says we are, or None outside any launcher.

    A Slurm batch script itself is no rank: only a step of more than one task (``srun``) counts.

    >>> detect({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8"})
    Launched(launcher='Open MPI', rank=3, size=8, local_size=1)
    >>> detect({"SLURM_NTASKS": "8", "SLURM_PROCID": "0"}) is None
    True
    """
    environ = os.environ if environ is None else environ
    kinds = (
        ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("MPICH", "PMI_RANK", "PMI_SIZE"),
        ("MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
        ("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
        ("Slurm", "PMIX_RANK", "SLURM_STEP_NUM_TASKS"),
    )
    local = _number(environ, "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_TASKS_PER_NODE")
    for launcher, rank_name, size_name in kinds:
        rank, size = _number(environ, rank_name), _number(environ, size_name)
        if rank is None or size is None or (launcher == "Slurm" and size == 1):
            continue
        return Launched(launcher, rank, size, local or 1)
    return None


def launched() -> bool:
    """Is this process a rank of a job that an MPI launcher started?"""
    return detect() is not None


def this_rank() -> int:
    """The rank that this process is; 0 outside any launcher."""
    job = detect()
    return 0 if job is None else job.rank


def is_root() -> bool:
    """True on rank 0, and outside MPI: the rank that prints."""
    return this_rank() == 0


def beside_root() -> bool:
    """Whether this process sees the files that rank 0 writes: all ranks share a machine, as far as the launcher tells."""
    job = detect()
    return job is None or job.rank == 0 or job.local_size == job.size


def has_log() -> bool:
    """Whether this rank writes to a log of its own."""
    return LOGS in read_job_facts()


def terminal_columns(stream: TextIO) -> int | None:
    """Width of the terminal that a stream ends in, None if it ends in a file or a pipe.

    Open MPI gives its ranks a terminal of its own, whatever its output goes to; then its own output is looked at.
    """
    if not stream.isatty():
        return None
    try:
        if not launched():
            return os.get_terminal_size(stream.fileno()).columns or 80
        launcher = read_job_facts().get(LAUNCHER, os.getppid())
        descriptor = os.open(f"/proc/{launcher}/fd/{stream.fileno()}", os.O_WRONLY | os.O_NOCTTY)
        try:
            return os.get_terminal_size(descriptor).columns or 80
        finally:
            os.close(descriptor)
    except (OSError, ValueError):
        return None
