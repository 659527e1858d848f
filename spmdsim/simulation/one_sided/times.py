"""Modelled time of one-sided communication."""

from __future__ import annotations

from spmdsim.simulation.engine.scheduler import Task


def transfer_end(task: Task, target: int, nbytes: int, returns: bool) -> float:
    """Reserve the outgoing port of a rank for a transfer; return the seconds at which it is complete.

    The transfer is counted as a message of its origin.

    Args:
        task: the origin.
        target: the rank of the program whose window it accesses.
        nbytes: bytes that move.
        returns: True if the origin needs data of the target: then a request goes there first.
    """
    link = task.scheduler.link((task.rank, target), nbytes)
    start = max(task.clock, task.port_out)
    task.port_out = start + link.alpha + link.beta * nbytes
    task.messages_sent += 1
    task.bytes_sent += nbytes
    return task.port_out + (link.alpha if returns else 0.0)


def round_trip(task: Task, target: int) -> None:
    """Advance the clock of a rank by a request without data and its answer, as for a lock."""
    task.clock += 2 * task.scheduler.link((task.rank, target), 0).alpha
