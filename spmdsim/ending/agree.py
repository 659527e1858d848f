"""Is it one rank that stops, or all of them? Found out in a second, without any collective.

A rank that stops alone leaves the others waiting for ever in their next collective, so it must abort the job.
Ranks that all stop (a wrong argument is wrong everywhere) should say so once and leave in peace. To tell the
two apart, each stopping rank sends its message to rank 0, which waits a moment for the rest. Point-to-point
messages under a tag of our own cannot be mixed up with whatever collective the other ranks are in.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from mpi4py import MPI

Said = TypeVar("Said")

TAG = 77_011
"""Below every library's limit on tags, and unlikely to be anybody else's."""

SECONDS = 1.0
"""How long rank 0 waits for the other ranks; the others wait longer, one after the other."""

ENDED_SECONDS = 15.0
"""How long rank 0 may take to end the job once it speaks for others."""

EXIT_SECONDS = 4.0
"""The same after ``sys.exit(code)``: mostly all ranks do that, and one of them prints something first."""


def gather_stops(comm: MPI.Comm, message: Said, seconds: float) -> dict[int, Said] | None:
    """Exchange the reasons of all ranks that are stopping now.

    Args:
        comm: all ranks of the job.
        message: why this rank stops.
        seconds: how long rank 0 waits.

    Returns:
        On the one rank that should speak: the messages by rank, complete or not. On the others None: somebody
        else speaks, or has ended the job already.
    """
    if comm.size == 1:
        return {0: message}
    if comm.rank:
        return _report(comm, message, seconds)
    reasons = {0: message}
    deadline = time.monotonic() + seconds
    while len(reasons) < comm.size and time.monotonic() < deadline:
        reasons |= told(comm)
        time.sleep(0.002)
    for rank in set(reasons) - {0}:
        comm.send(len(reasons) == comm.size, dest=rank, tag=TAG)
    return reasons


def told(comm: MPI.Comm) -> dict[int, Any]:
    """On rank 0: what ranks that stop have told it by now."""
    reasons = {}
    for rank in range(1, comm.size):
        if comm.Iprobe(source=rank, tag=TAG):
            reasons[rank] = comm.recv(source=rank, tag=TAG)
    return reasons


def _report(comm: MPI.Comm, message: Said, seconds: float) -> dict[int, Said] | None:
    """Tell rank 0 and wait for its answer; if none comes, rank 0 is not stopping and this rank speaks."""
    request = comm.isend(message, dest=0, tag=TAG)
    deadline = time.monotonic() + seconds * 1.3 + 0.05 * min(comm.rank, 20)
    while time.monotonic() < deadline:
        request.test()
        if comm.iprobe(source=0, tag=TAG):
            together = comm.recv(source=0, tag=TAG)
            request.wait()
            if together:
                return None
            time.sleep(ENDED_SECONDS)  # rank 0 says it for this rank, too, and ends the job
            break
        time.sleep(0.002)
    return {comm.rank: message}
