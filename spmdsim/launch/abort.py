"""A program of one rank, guarded: whatever leaves it other than a normal return ends all ranks within seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from spmdsim.ending.hooks import hook_threads
from spmdsim.ending.notes import note_left
from spmdsim.ending.starting import beside, end_the_other, over
from spmdsim.ending.stop import active_world, leave, stop
from spmdsim.errors import SpmdError
from spmdsim.launch.checks import check_launcher
from spmdsim.launcher import detect

if TYPE_CHECKING:
    from mpi4py import MPI

JOIN_SECONDS = 4.0
"""How long starting MPI may take for a rank that only wants to say why it stops."""


def guard(program: Callable[[], int | None], name: str) -> int:
    """Run a program so that its failure on any rank ends all of them.

    Args:
        program: returns an exit code, or None for 0, when all its work with other ranks is done.
        name: how the program is called in error lines.

    Returns:
        The exit code for this process.
    """
    hook_threads()
    try:
        code = program() or 0
        note_left(job.rank if (job := detect()) else 0, code)
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
        with beside(lambda: None if over(JOIN_SECONDS) else end_the_other(said, code)):
            from mpi4py import MPI
    except (ImportError, RuntimeError):
        return None
    return MPI.COMM_WORLD
