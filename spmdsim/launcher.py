"""Read from the environment, before MPI starts, which rank an MPI launcher assigned to this process."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import TextIO

#: The variable in which a process of a job passes facts to the processes that it starts, as JSON. Users do not set it.
JOB_VARIABLE = "SPMDSIM_JOB"
#: Names of the facts: the starter's folder; where it receives notes of other hosts; the folder of
#: the ranks' logs; the file to which ranks print in blocks; the process number of the MPI launcher, which a rank's
#: supervisor passes to the rank.
FOLDER, SERVER, LOGS, BLOCKS, LAUNCHER = "folder", "server", "logs", "blocks", "launcher"


def read_job_facts(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the facts that the job's starter and this rank's supervisor passed, by name.

    The dict is empty if no starter or supervisor passed facts, or the variable ``SPMDSIM_JOB`` has no JSON object.
    Names and values are texts.

    Args:
        environment: the variables; None for those of this process.

    >>> environment = {}
    >>> give_job_facts(environment, logs="/tmp/logs")
    >>> give_job_facts(environment, launcher="41")
    >>> read_job_facts(environment)
    {'logs': '/tmp/logs', 'launcher': '41'}
    """
    text = (os.environ if environment is None else environment).get(JOB_VARIABLE)
    if not text:
        return {}
    import json

    try:
        facts = json.loads(text)
    except ValueError:  # the variable of another program
        return {}
    return {str(k): str(v) for k, v in facts.items()} if isinstance(facts, dict) else {}


def give_job_facts(environment: MutableMapping[str, str], **facts: str | None) -> None:
    """Add facts for started processes to ``SPMDSIM_JOB`` of an environment, in place.

    The variable has the facts as a JSON object; it is removed when no fact is left. Other facts of the variable stay.

    Args:
        environment: the variables, such as a copy of ``os.environ``.
        **facts: facts by name, of :data:`FOLDER` and the names beside it; None removes a fact.
    """
    import json

    all_facts: dict[str, str | None] = {**read_job_facts(environment), **facts}
    job_facts = {name: fact for name, fact in all_facts.items() if fact is not None}
    if job_facts:
        environment[JOB_VARIABLE] = json.dumps(job_facts)
    else:
        environment.pop(JOB_VARIABLE, None)


@dataclass(frozen=True)
class Launched:
    """The rank of this process in a job of an MPI launcher.

    Attributes:
        launcher: "Open MPI", "MPICH" (or another launcher with PMI), "MVAPICH" or "Slurm".
        rank: number of this rank.
        size: number of ranks of the job.
        local_size: number of ranks on this machine; 1 if the launcher does not set it.
    """

    launcher: str
    rank: int
    size: int
    local_size: int = 1


def _find_number(environ: Mapping[str, str], *names: str) -> int | None:
    """Return the number with which the first of some variables begins.

    The first variable that begins with a digit counts. None if no variable does. So "4(x2)" gives 4; "-1" has no
    number.
    """
    for name in names:
        number = re.match(r"\d+", environ.get(name, ""))
        if number:
            return int(number.group())
    return None


def detect(environ: Mapping[str, str] | None = None) -> Launched | None:
    """Return this process's rank and the number of ranks, as its launcher states them in the environment.

    - If variables of a launcher are set: the result names the launcher. They are tried in the order Open MPI, MPICH (and
      others with PMI), MVAPICH, Slurm.
    - If none are set: None.
    - A Slurm batch script, or a step with one task, counts as no launcher. A step with more tasks (``srun``) does.

    Args:
        environ: the variables; None for those of this process.

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
    local = _find_number(
        environ, "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_TASKS_PER_NODE"
    )
    for launcher, rank_name, size_name in kinds:
        rank, size = _find_number(environ, rank_name), _find_number(environ, size_name)
        if rank is None or size is None or (launcher == "Slurm" and size == 1):
            continue
        return Launched(launcher, rank, size, local or 1)
    return None


def find_slurm_plugin(vendor: str) -> str:
    """Return the plugin that ``srun --mpi`` needs for the ranks of an MPI library to see each other.

    >>> find_slurm_plugin("Open MPI"), find_slurm_plugin("MPICH")
    ('pmix', 'pmi2')
    """
    return "pmix" if vendor == "Open MPI" else "pmi2"


def advise_start(job: Launched, vendor: str, environ: Mapping[str, str] | None = None) -> str:
    """Return words that name a command with which the ranks of a job see each other.

    It is ``srun`` with the plugin of the MPI library if ``srun`` started the ranks, with whatever plugin. Else it is the
    ``mpirun`` of the library.

    Args:
        job: the job, as its launcher describes it.
        vendor: the vendor of the MPI library.
        environ: the variables; None for those of this process.

    >>> advise_start(Launched("MPICH", 0, 8), "Open MPI", {"SLURM_STEP_NUM_TASKS": "8"})
    'start with `srun --mpi=pmix -n 8`'
    >>> advise_start(Launched("MPICH", 0, 8), "Open MPI", {})
    'start with the mpirun of Open MPI, or with `spmdsim launch -n 8`, which finds it'
    """
    environ = os.environ if environ is None else environ
    # The mpirun of MPICH starts one task of Slurm per host, so the step has fewer tasks than ranks.
    if _find_number(environ, "SLURM_STEP_NUM_TASKS") == job.size:
        return f"start with `srun --mpi={find_slurm_plugin(vendor)} -n {job.size}`"
    return f"start with the mpirun of {vendor}, or with `spmdsim launch -n {job.size}`, which finds it"


def launched() -> bool:
    """Return True if an MPI launcher started this process."""
    return detect() is not None


def is_simulated() -> bool:
    """Return True in a virtual rank of ``spmdsim simulate``, whose mpi4py is simulated."""
    return hasattr(sys.modules.get("mpi4py"), "__spmdsim__")


def this_rank() -> int:
    """Return the rank of this process; 0 outside of a launcher."""
    job = detect()
    return 0 if job is None else job.rank


def find_host_name() -> str:
    """Return the name of this host if the job has ranks on other hosts, too; an empty text if not."""
    job = detect()
    return platform.node() if job is not None and job.local_size < job.size else ""


def describe_host() -> str:
    """Return words such as " on node3" if the job has ranks on several hosts; an empty text if not."""
    name = find_host_name()
    return f" on {name}" if name else ""


def is_root() -> bool:
    """Return True on rank 0 and outside of a launcher; this process prints."""
    return this_rank() == 0


def beside_root() -> bool:
    """Return True if this process sees the files that rank 0 writes.

    This is so on rank 0, outside of a launcher, and if the launcher reports that all ranks share a machine.
    """
    job = detect()
    return job is None or job.rank == 0 or job.local_size == job.size


def has_log() -> bool:
    """Return True if this rank writes to its own log."""
    return LOGS in read_job_facts()


def terminal_columns(stream: TextIO) -> int | None:
    """Return the width of the terminal to which a stream goes, in characters; None if to no terminal.

    - If the stream goes to a file or a pipe: None.
    - If it goes to a terminal that does not report its width: 80.
    - On ranks of a launcher, the output of the launcher decides, because Open MPI gives its ranks a terminal even if its
      own output goes to a file. If the launcher's output cannot be opened: None.
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
