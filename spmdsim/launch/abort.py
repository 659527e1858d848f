"""A program of one rank, guarded: whatever leaves it other than a normal return ends all ranks within seconds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from spmdsim.errors import SpmdError, WorldError, many
from spmdsim.launcher import Launched, detect
from spmdsim.shutdown.exit_notes import note_left
from spmdsim.shutdown.hooks import hook_threads
from spmdsim.shutdown.phase_watch import end_watched_process, run_beside, start_mpi, wait_for_end
from spmdsim.shutdown.stop import active_world, leave, stop

if TYPE_CHECKING:
    from mpi4py import MPI


def require_mpi() -> MPI.Comm:
    """Start MPI and return all ranks."""
    try:
        start_mpi()
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        from spmdsim.launch.mpi import missing

        raise WorldError(missing(f"{type(error).__name__}: {error}".splitlines()[0])) from None
    check_size(MPI.COMM_WORLD.size, MPI.get_vendor()[0], detect())
    return MPI.COMM_WORLD


#: The binary interface of the library that each launcher's ranks need.
FAMILIES = {"Open MPI": "openmpi", "MPICH": "mpich"}


def check_launcher(job: Launched | None) -> None:
    """Compare the launcher with the library before MPI starts, and each library complains in its own way."""
    if job is None or job.size == 1 or job.launcher not in FAMILIES:
        return
    family = binary_interface()
    if family not in FAMILIES.values() or family == FAMILIES[job.launcher]:
        return
    vendor = next(vendor for vendor, name in FAMILIES.items() if name == family)
    raise WorldError(
        f"the launcher ({job.launcher}) started {many(job.size, 'rank')}, but mpi4py loads {vendor}'s library, "
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
    """Compare what MPI sees with what the launcher said."""
    if job is None or job.size == size:
        return
    raise WorldError(
        f"the launcher ({job.launcher}) started {many(job.size, 'rank')}, but MPI ({vendor}, through mpi4py) "
        f"sees {size}: start with the mpirun of {vendor}, or with `spmdsim launch -n {job.size}`, "
        "which finds it"
    )


#: How long starting MPI may take for a rank that only wants to say why it stops.
JOIN_SECONDS = 4.0


def guard(program: Callable[[], int | None], name: str) -> int:
    """Run a program so that its failure on any rank ends all of them; the exit code for this process.

    It returns one, or None for 0, when all its work with other ranks is done; ``name`` is what error lines call it.
    """
    hook_threads()
    try:
        code = program() or 0
        note_left(code)
        return leave(code) if code and active_world() is not None else code
    except BaseException as error:
        return stop(error, name, join_world)


def join_world(text: str, code: int) -> MPI.Comm | None:
    """Start MPI to find out whether the other ranks stop too; None if that does not work.

    The other ranks start it sooner or later, to work or to stop as well. If they do neither, this rank says
    ``text`` and leaves with ``code``.
    """
    job = detect()
    try:
        check_launcher(job)
    except SpmdError:
        return None
    try:
        said = f"rank {job.rank} of {job.size} stopped, the job ends:\n{text}" if job else text
        with run_beside(lambda: None if wait_for_end(JOIN_SECONDS) else end_watched_process(said, code)):
            from mpi4py import MPI
    except (ImportError, RuntimeError):
        return None
    return MPI.COMM_WORLD
