"""Computation that a program states in modelled time."""

from __future__ import annotations

from spmdsim.errors import InputError, UsageTypeError
from spmdsim.simulation.engine.scheduler import current_task


def compute(seconds: float = 0.0, flops: float = 0.0) -> None:
    """Advance the modelled clock of the running virtual rank by a computation; return at once.

    The duration is ``seconds`` plus the machine's time of ``flops``, divided by the rank's speed, with noise if the
    simulation has any. Measured computation counts besides. Outside of a simulation the function does nothing.

    Args:
        seconds: duration at speed 1, 0 or more.
        flops: number of floating point operations, 0 or more.

    Raises:
        InputError: If a number is below 0 or not finite.
        UsageTypeError: If an argument is no number.

    >>> from spmdsim.simulation import simulate
    >>> simulate(lambda comm: compute(seconds=2.0), 2, speed=(1.0, 0.5)).seconds
    (2.0, 4.0)
    """
    for name, value in (("seconds", seconds), ("flops", flops)):
        if not isinstance(value, int | float):
            raise UsageTypeError(f"compute: {name} must be a number, got {value!r}")
        if not 0 <= value < float("inf"):
            raise InputError(f"compute: {name} must be 0 or more and finite, got {value}")
    task = current_task()
    if task is None:
        return
    scheduler = task.scheduler
    work = seconds + scheduler.machine.compute_seconds(flops)
    task.advance(scheduler.computation.duration(task.rank, work))
