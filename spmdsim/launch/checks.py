"""Is the MPI that runs here the one the launcher meant? Checked once, before any collective."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spmdsim.errors import WorldError
from spmdsim.launch.environment import Launched, detect

if TYPE_CHECKING:
    from mpi4py import MPI


def require_mpi() -> MPI.Comm:
    """Start MPI and return all ranks.

    Raises:
        WorldError: mpi4py or MPI is missing, or the launcher belongs to another MPI.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        from spmdsim.launch.mpi import missing

        raise WorldError(missing(f"{type(error).__name__}: {error}".splitlines()[0])) from None
    comm = MPI.COMM_WORLD
    check_size(comm.size, MPI.get_vendor()[0], detect())
    return comm


def check_size(size: int, vendor: str, found: Launched | None) -> None:
    """Compare what MPI sees with what the launcher said.

    Raises:
        WorldError: they differ: the ranks do not see each other.
    """
    if found is None or found.size == size:
        return
    raise WorldError(
        f"the launcher ({found.launcher}) started {found.size} ranks, but MPI ({vendor}, through mpi4py) "
        f"sees {size}: start with the mpirun of {vendor}, or with `spmdsim launch -n {found.size}`, "
        "which finds it"
    )
