"""Is the MPI that runs here the one the launcher meant? Checked once, before any collective."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from spmdsim.ending.starting import start_mpi
from spmdsim.errors import WorldError
from spmdsim.launcher import Launched, detect

if TYPE_CHECKING:
    from mpi4py import MPI


def require_mpi() -> MPI.Comm:
    """Start MPI and return all ranks.

    Raises:
        WorldError: mpi4py or MPI is missing, or the launcher belongs to another MPI.
    """
    try:
        start_mpi()
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        from spmdsim.launch.mpi import missing

        raise WorldError(missing(f"{type(error).__name__}: {error}".splitlines()[0])) from None
    comm = MPI.COMM_WORLD
    check_size(comm.size, MPI.get_vendor()[0], detect())
    return comm


FAMILIES = {"Open MPI": "openmpi", "MPICH": "mpich"}
"""The binary interface of the library that each launcher's ranks need."""


def check_launcher(job: Launched | None) -> None:
    """Compare the launcher with the library before MPI starts, and each library complains in its own way.

    Raises:
        WorldError: a launcher of one family started ranks of an mpi4py that loads the other's library.
    """
    if job is None or job.size == 1 or job.launcher not in FAMILIES:
        return
    family = binary_interface()
    if family not in FAMILIES.values() or family == FAMILIES[job.launcher]:
        return
    vendor = next(vendor for vendor, name in FAMILIES.items() if name == family)
    raise WorldError(
        f"the launcher ({job.launcher}) started {job.size} ranks, but mpi4py loads {vendor}'s library, "
        f"which would see {job.size} jobs of one rank: start with the mpirun of {vendor}, or with "
        f"`spmdsim launch -n {job.size}`, which finds it"
    )


def binary_interface() -> str | None:
    """The MPI family ("openmpi", "mpich") that an mpi4py made for several will load; None if it was made for one."""
    try:
        import mpi4py

        if not list(Path(mpi4py.__path__[0]).glob("MPI.mpich*")):
            return None
        from mpi4py._mpiabi import _get_mpiabi  # type: ignore[attr-defined]
    except ImportError:
        return None
    try:
        family: str = _get_mpiabi()
    except (RuntimeError, OSError):  # no library at all: said where MPI is started
        return None
    return family


def check_size(size: int, vendor: str, job: Launched | None) -> None:
    """Compare what MPI sees with what the launcher said.

    Raises:
        WorldError: they differ: the ranks do not see each other.
    """
    if job is None or job.size == size:
        return
    raise WorldError(
        f"the launcher ({job.launcher}) started {job.size} ranks, but MPI ({vendor}, through mpi4py) "
        f"sees {size}: start with the mpirun of {vendor}, or with `spmdsim launch -n {job.size}`, "
        "which finds it"
    )
